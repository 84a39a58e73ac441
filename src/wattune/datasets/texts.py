"""Texts from files, archives and folders, without the text that Project Gutenberg adds to its books."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattune.datasets.archives import is_archive, members, names
from wattune.datasets.downloads import File, local
from wattune.errors import WorkloadError
from wattune.workloads.data import Data
from wattune.workloads.sample_selection import check_split, split
from wattune.workloads.values import flag, whole

PRINTABLE = "\n" + string.digits + string.ascii_letters + string.punctuation + " "
"""The 96 characters of ``vocabulary = "ascii"``: letters, digits, punctuation, space and newline."""

# Marks of today's files, and of those before 2002: a header that ends with "small print", a footer without asterisks.
_MARK = r"\*\*\* ?{} OF (?:THE|THIS) PROJECT GUTENBERG (?:EBOOK|ETEXT)[^*]{{0,400}}\*\*\*"
_START = re.compile(_MARK.format("START") + r"|\*END\*? ?THE SMALL PRINT![^\n]{0,100}\*END\*", re.IGNORECASE)
_END = re.compile(_MARK.format("END") + r"|^[ *]*End of (?:the |this )?Project Gutenberg", re.IGNORECASE | re.MULTILINE)
_CREDIT = re.compile(r"\s*(?:Produced|E-?text prepared|Transcribed) by .*?\n[ \t]*\n", re.IGNORECASE | re.DOTALL)
_HEADER_CHARACTERS = 40_000  # a header ends within these


@dataclass(frozen=True)
class Text:
    """A text, cut into pieces of ``length`` characters; the target of each character is the next one.

    ``train`` and ``test``: one or more UTF-8 files, or archives or folders of such files, read in order.
    ``train_members`` and ``test_members``: names of files in an archive, with ``*`` for any characters (default: all
    that end in .txt); with ``test_members`` alone, the test part is in ``train`` too.
    ``gutenberg``: read only the text between Project Gutenberg's header and footer.

    ``vocabulary``: the characters to keep, "ascii" for the printable ones and the newline, or None for all of the
    training text. Without a test part, the last ``test_share`` of each text becomes it; with a ``split_seed``, that
    share of the pieces, drawn with the seed.
    """

    train: File | tuple[File, ...]
    length: int
    test: File | tuple[File, ...] | None = None
    test_share: float = 0.1
    vocabulary: str | None = None
    split_seed: int | None = None
    train_members: tuple[str, ...] = ()
    test_members: tuple[str, ...] = ()
    gutenberg: bool = False

    def __post_init__(self) -> None:
        check_split(self.test_share, 0 if self.split_seed is None else self.split_seed)
        whole("sequence_length", self.length)
        flag("gutenberg", self.gutenberg)
        if self.vocabulary is not None and (not isinstance(self.vocabulary, str) or not self.vocabulary):
            raise WorkloadError("vocabulary", value=self.vocabulary, allowed='the characters as a string, or "ascii"')
        if self._own_test and self.split_seed is not None:
            raise WorkloadError("split_seed beside a test part", value=self.split_seed, allowed="one of the two")

    @property
    def _own_test(self) -> bool:
        return self.test is not None or bool(self.test_members)

    def __call__(self) -> Data:
        """Read the files. Raises: WorkloadError."""
        texts = read_texts(self.train, self.train_members, gutenberg=self.gutenberg)
        tests: list[str] = []
        if self._own_test:
            tests = read_texts(self.test or self.train, self.test_members, gutenberg=self.gutenberg)
        elif self.split_seed is None:
            cuts = [len(text) - int(len(text) * self.test_share) for text in texts]
            tests = [text[cut:] for text, cut in zip(texts, cuts, strict=True)]
            texts = [text[:cut] for text, cut in zip(texts, cuts, strict=True)]
        train = "".join(texts)
        characters = PRINTABLE if self.vocabulary == "ascii" else self.vocabulary or train
        numbers = {character: number for number, character in enumerate(sorted(set(characters)))}
        if not self._own_test and self.split_seed is not None:
            return split(*self._pieces(train, numbers), self.test_share, self.split_seed)
        return Data(self._pieces(train, numbers), self._pieces("".join(tests), numbers))

    def _pieces(self, text: str, numbers: dict[str, int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        codes = np.array([numbers[c] for c in text if c in numbers], dtype=np.int64)
        count = (len(codes) - 1) // self.length
        if count < 1:
            raise WorkloadError(
                "a text too short",
                value=f"{len(codes)} characters",
                allowed=f"more than sequence_length, {self.length}",
            )
        length = count * self.length
        return codes[:length].reshape(count, self.length), codes[1 : length + 1].reshape(count, self.length)


def read_texts(files: File | tuple[File, ...], patterns: tuple[str, ...] = (), *, gutenberg: bool = False) -> list[str]:
    """Read the texts in these files, with "\\n" between lines: one from a text file, one per member from an archive.

    ``patterns``: names of members to read, with ``*`` for any characters; by default all that end in .txt.
    Raises: WorkloadError.
    """
    texts: list[str] = []
    for file in files if isinstance(files, tuple) else (files,):
        path = local(file)
        contents = _members(path, patterns) if is_archive(path) else [(str(path), _content(path))]
        for name, content in contents:
            text = _decoded(content, name)
            texts.append(without_gutenberg(text, name) if gutenberg else text)
    return texts


def without_gutenberg(text: str, name: str) -> str:
    """Return the text between Project Gutenberg's header and footer, without the paragraph of credits at its start.

    Raises: WorkloadError if the header or the footer is missing.
    """
    start = end = None
    for start in _START.finditer(text, 0, _HEADER_CHARACTERS):
        end = _END.search(text, start.end())  # after the last start: some headers have both marks
    if start is None or end is None:
        raise WorkloadError(
            f"no Project Gutenberg {'footer' if start else 'header'} in", value=name, hint="remove the key gutenberg"
        )
    book = text[start.end() : end.start()]
    if credit := _CREDIT.match(book):
        book = book[credit.end() :]
    return book.strip() + "\n"


def _members(path: Path, patterns: tuple[str, ...]) -> Iterable[tuple[str, bytes]]:
    member_names = names(path)
    selection: list[str] = []
    for pattern in patterns or ("*.txt",):
        matches = [name for name in member_names if fnmatchcase(name, pattern)]
        if not matches:
            raise WorkloadError(
                f"no text in {path} with the name",
                value=pattern,
                allowed=", ".join(member_names[:8]) + ", ..." * (len(member_names) > 8),
            )
        selection += matches
    contents = dict(members(path, set(selection).__contains__))
    return [(f"{name} of {path}", contents[name]) for name in dict.fromkeys(selection)]


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
