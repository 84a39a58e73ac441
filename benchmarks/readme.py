"""Fill the figures of the README and the docs from results/, each between `<!-- NAME -->` and `<!-- /NAME -->`."""

from __future__ import annotations

import re

from benchmarks.tables import boards, choices, papers, running
from benchmarks.tables.results import with_moment
from benchmarks.timing import ROOT

MARK = re.compile(r"(<!-- (?P<name>\w+) -->\n).*?(<!-- /(?P=name) -->)", re.DOTALL)
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "benchmarks").rglob("*.md"))]
PAGES = [page for page in TEXTS if MARK.search(page.read_text())]
PARTS = {name: part for tables in (boards, choices, papers, running) for name, part in vars(tables).items()}
"""Each part by the name of the function that writes it."""


def filled(text: str) -> str:
    """``text`` with every marked part filled from the results, and when these were measured."""
    return MARK.sub(lambda match: match[1] + with_moment(PARTS[match["name"]]) + match[3], text)


def main() -> None:
    """Fill every page."""
    for page in PAGES:
        page.write_text(filled(page.read_text()))
        print(f"{page.name} filled")
