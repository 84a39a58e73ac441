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
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_make_docs_builds_it_in_the_same_way():
    recipe = re.search(r"^docs:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert recipe == "NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict"


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


@pytest.mark.parametrize("link", ["[x](nowhere.md)", "[x](guide.md#nowhere)", "[x](../deploy/nothing.md)"])
def test_a_broken_link_is_an_error(link, tmp_path):
    for name in ("docs", "deploy", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    (tmp_path / "src").symlink_to(ROOT / "src")
    config = (ROOT / "mkdocs.yml").read_text()
    (tmp_path / "mkdocs.yml").write_text(config)
    page = tmp_path / "docs/glossary.md"
    page.write_text(f"{page.read_text()}\n{link}\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode == 1
    assert "glossary.md" in done.stderr
