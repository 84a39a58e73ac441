"""Each strong claim of README and docs stands on its page, and has a test that proves it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
TABLE = tomllib.loads((ROOT / "tests/claims.toml").read_text())
NO_CLAIMS = TABLE.pop("no-claims")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/tutorials").glob("*.md"))]
"""Without the decision records, which tell what was the case."""


def text_of(page: str) -> str:
    """The page in one line, without the parts that are filled from results."""
    content = re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", (ROOT / page).read_text(), flags=re.DOTALL)
    return " ".join(content.split())


@pytest.mark.parametrize("page", sorted({*TABLE, *NO_CLAIMS}))
def test_what_is_listed_stands_on_its_page_and_its_test_is_there(page):
    content = text_of(page)
    assert [one for one in (*TABLE.get(page, ()), *NO_CLAIMS.get(page, ())) if one not in content] == []
    for test in TABLE.get(page, {}).values():
        file, _, name = test.partition("::")
        assert re.search(rf"\bdef {name}\(", (ROOT / file).read_text()), test


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES])
def test_no_never_and_no_always_stands_without_a_test(page):
    content = text_of(page)
    for known in (*TABLE.get(page, ()), *NO_CLAIMS.get(page, ())):
        content = content.replace(known, "")
    assert re.findall(r".{0,60}\b(?:never|always)\b.{0,30}", content, re.IGNORECASE) == []
