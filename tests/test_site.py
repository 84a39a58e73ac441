"""The site: every page is in it, links are checked, every public name is described, and no other host is asked."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import wattune

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent


def build(root, folder):
    """Build the site of a checkout as `make docs` does."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_make_docs_builds_it_in_the_same_way():
    recipe = re.search(r"^docs:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert recipe == "NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict"


def test_every_page_is_in_the_navigation_and_in_the_search(site):
    index = json.loads((site / "search/search_index.json").read_text())
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    pages = [
        page
        for folder in ("docs", "deploy", "examples", "benchmarks")
        for page in (ROOT / folder).rglob("*.md")
        if "results" not in page.parts
    ]
    for page in pages:
        name = page.relative_to(ROOT).with_suffix("").as_posix().removeprefix("docs/")
        assert f"{name.removesuffix('README')}".rstrip("/") + "/" in found, name
    assert "" in found


def test_every_public_name_has_its_description(site):
    text = (site / "api/index.html").read_text()
    for name in set(wattune.__all__) - {"__version__"}:
        assert re.search(rf'id="wattune\.(?:\w+\.)*{name}"', text), name


def test_no_page_asks_another_host_for_anything(site):
    asked = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)="(?:https?:)?//[^"]*"')
    for page in site.rglob("*.html"):
        links = [tag for tag in asked.findall(page.read_text()) if 'rel="canonical"' not in tag]
        assert links == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", sheet.read_text()), sheet


def test_broken_links_are_errors(tmp_path):
    broken = ["nowhere.md", "guide.md#nowhere", "../deploy/nothing.md"]
    for name in ("docs", "deploy", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "mkdocs.yml"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("benchmarks", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    page = tmp_path / "docs/glossary.md"
    page.write_text(page.read_text() + "".join(f"\n[x]({link})\n" for link in broken))
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    assert [link for link in broken if f"contains a link '{link}'" not in done.stderr] == []
