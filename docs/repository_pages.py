"""mkdocs hook: adds the pages of the repository that are outside docs/ to the site, and maps the links between them.

The sources keep links that work in a clone, such as ``../deploy/README.md``. A link to a file that only a clone has
becomes plain text.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = ("*.md", "CITATION.cff", "LICENSE", "deploy/*", "benchmarks/*/README.md", "examples/**/*")
SUFFIXES = ("", ".cff", ".md", ".py", ".toml", ".sh", ".ipynb", ".service", ".conf", ".rules", ".cpu", ".jetson")

LINK = re.compile(r"(?P<text>!?\[(?P<label>[^\]]*)\])\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
MARK = re.compile(r"^<!-- /?\w+ -->$", re.MULTILINE)
"""Around figures that are filled from benchmark results."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is outside docs/."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file() and path.suffix in SUFFIXES:
                source = path.relative_to(ROOT).as_posix()
                files.append(File.generated(config, address(source), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Map links, and drop the marks around figures."""
    source = page.file.src_uri
    home = dirname(os.path.relpath(page.file.abs_src_path or source, ROOT))

    def mapped(match: re.Match[str]) -> str:
        target = normpath(join(home, match["target"]))
        if "://" in match["target"] or not (ROOT / target).exists():
            return match[0]
        if (ROOT / target).is_dir():
            target += "/README.md"
        if files.get_file_from_path(address(target)) is None:
            return match["label"]
        return f"{match['text']}({relpath(address(target), dirname(source) or '.')}{match['anchor'] or ''})"

    return LINK.sub(mapped, MARK.sub("", markdown))


def address(source: str) -> str:
    """Place in the site of a file of the repository."""
    return "index.md" if source == "README.md" else source.removeprefix("docs/")
