"""Texts from files, archives and folders, and what Project Gutenberg puts around its own."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from wattune.errors import WorkloadError
from wattune.workloads.archives import is_archive, members, names
from wattune.workloads.downloads import File, local

# Of today; of before 2002, whose header ends with the "small print" and whose footer begins with a line in words.
_MARK = r"\*\*\* ?{} OF (?:THE|THIS) PROJECT GUTENBERG (?:EBOOK|ETEXT)[^*]{{0,400}}\*\*\*"
_START = re.compile(_MARK.format("START") + r"|\*END\*? ?THE SMALL PRINT![^\n]{0,100}\*END\*", re.IGNORECASE)
_END = re.compile(_MARK.format("END") + r"|^[ *]*End of (?:the |this )?Project Gutenberg", re.IGNORECASE | re.MULTILINE)
_CREDIT = re.compile(r"\s*(?:Produced|E-?text prepared|Transcribed) by .*?\n[ \t]*\n", re.IGNORECASE | re.DOTALL)
_HEADER_CHARACTERS = 40_000  # in which a header has ended


def read_texts(files: File | tuple[File, ...], wanted: tuple[str, ...] = (), *, gutenberg: bool = False) -> list[str]:
    """The texts in these files, with "\\n" between lines: one of a text file, each that is wanted of an archive.

    ``wanted``: names of members, with ``*`` for any characters; by default all that end in .txt.
    Raises: WorkloadError.
    """
    texts: list[str] = []
    for file in files if isinstance(files, tuple) else (files,):
        path = local(file)
        contents = _members(path, wanted) if is_archive(path) else [(str(path), _content(path))]
        for name, content in contents:
            text = _decoded(content, name)
            texts.append(without_gutenberg(text, name) if gutenberg else text)
    return texts


def without_gutenberg(text: str, name: str) -> str:
    """The text between Project Gutenberg's header and footer, without the paragraph of credits that follows the header.

    Raises: WorkloadError where there are no such lines around it.
    """
    start = end = None
    for start in _START.finditer(text, 0, _HEADER_CHARACTERS):
        end = _END.search(text, start.end())  # of the last of them: some headers have both marks
    if start is None or end is None:
        raise WorkloadError(
            f"no {'footer' if start else 'header'} of Project Gutenberg in", value=name, hint="leave gutenberg out"
        )
    inside = text[start.end() : end.start()]
    if credit := _CREDIT.match(inside):
        inside = inside[credit.end() :]
    return inside.strip() + "\n"


def _members(path: Path, wanted: tuple[str, ...]) -> Iterable[tuple[str, bytes]]:
    found = names(path)
    chosen = [name for pattern in wanted or ("*.txt",) for name in found if fnmatchcase(name, pattern)]
    for pattern in wanted or ("*.txt",):
        if not any(fnmatchcase(name, pattern) for name in found):
            raise WorkloadError(
                f"no text in {path} with the name",
                value=pattern,
                allowed=", ".join(found[:8]) + ", ..." * (len(found) > 8),
            )
    contents = dict(members(path, set(chosen).__contains__))
    return [(f"{name} of {path}", contents[name]) for name in dict.fromkeys(chosen)]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise WorkloadError(f"cannot read {path}", value=str(error), allowed="a text file in UTF-8") from error


def _decoded(content: bytes, name: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise WorkloadError(f"cannot read {name}", value=str(error), allowed="a text in UTF-8") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")
