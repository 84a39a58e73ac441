"""Docstrings, messages and pages are plain English: the phrases and first words that are not to come back.

The glossary is in CONTRIBUTING.md. Names in JSON, code and links are exempt: only prose is read.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TO_DO: set[str] = set()
"""Packages whose language is still to be mended: delete a name here with the last phrase that it allows."""

PACKAGES = sorted(
    {p.name for p in (ROOT / "src/wattune").iterdir() if p.is_dir() and p.name != "__pycache__"} - TO_DO
    | {"", "wattune_agent", "wattune_server"}
)
"""Sub-packages of wattune; "" stands for its own modules."""

PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "benchmarks").rglob("*.md"),
        *ROOT.glob("deploy/*.md"),
    ]
)

FIRST_WORDS = re.compile(r"(What|Whether|Where|Of|As|How|Who|Whoever|Whatever|That|Which|Nor)\b")
"""A docstring begins with a noun phrase or an imperative verb."""

PHRASES = re.compile(
    r"\b(?:"
    r"None where|whoever|whatever ends|anew|for ever|somebody|one's own|so many|made-up|in force"
    r"|(?:keeps?|kept|keeping|breaks?|broke|broken|breaking) the cap|held itself back|taken for dead"
    r"|go(?:es)? on (?:with|from|in|at|where|inside)|going on (?:with|from)"
    r"|(?<!there )(?:is|are|was|were) no (?!longer\b|more\b|less\b|fewer\b|other\b|match\b)[a-z]+"
    r"|(?<!there )is none|stands? (?:in(?! for)|beside|here|there|for itself)"
    r"|(?<!/)trainings|by itself"
    r")\b",
    re.IGNORECASE,
)
"""Phrases that a native engineer would not write; each has a plainer form in the glossary of CONTRIBUTING.md."""


def sources(package: str) -> list[Path]:
    """The modules of a package."""
    if package.startswith("wattune_"):
        return sorted((ROOT / "src" / package).rglob("*.py"))
    folder = ROOT / "src" / "wattune" / package
    return sorted(folder.rglob("*.py") if package else folder.glob("*.py"))


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring, also those of fields and constants."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for statement in body:
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of all that a person reads in a source file: docstrings, messages and comments."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        is_text = token.type in (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1))
        if is_text and " " in token.string:  # without a blank it is a name
            yield token.start[0], token.string


def without_code(text: str) -> str:
    """The text without code blocks, code spans and the targets of links."""
    text = re.sub(
        r"```.*?```|``[^`]*``|`[^`\n]*`|\]\([^)]*\)", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL
    )
    return re.sub(r"^ {4,}\S.*$", "", text, flags=re.MULTILINE) if text.lstrip().startswith("#") else text


def odd_phrases(text: str) -> list[str]:
    """Every phrase of the list in the text."""
    return [
        match[0] for match in PHRASES.finditer(re.sub(r"\s*\n[\s#]*", " ", without_code(text))) if match[0] != "is None"
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_begin_with_a_noun_or_a_verb(package):
    assert [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
        for path in sources(package)
        for line, text in docstrings(path)
        if FIRST_WORDS.match(text.lstrip())
    ] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_sources_read_as_plain_english(package):
    assert [
        f"{path.relative_to(ROOT)}:{line}: {phrase}"
        for path in sources(package)
        for line, text in prose(path)
        for phrase in odd_phrases(text)
    ] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_read_as_plain_english(path):
    assert odd_phrases(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "phrase", ["None where it fits", "It keeps the cap", "is no token", "measured anew", "two trainings"]
)
def test_the_list_finds_what_it_is_for(phrase):
    assert odd_phrases(f"{phrase}.")
    assert not odd_phrases(f"`{phrase}`")
