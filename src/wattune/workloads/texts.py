"""Texts from files, cut into pieces."""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wattune.errors import WorkloadError
from wattune.workloads.data import Data
from wattune.workloads.sample_selection import Pair, check_selection
from wattune.workloads.values import whole

PRINTABLE = "\n" + string.digits + string.ascii_letters + string.punctuation + " "
"""The 96 characters of ``vocabulary = "ascii"``: letters, digits, punctuation, space and newline."""


@dataclass(frozen=True)
class Text:
    """A text, cut into pieces of ``length`` characters; the target of each character is the next one.

    ``train`` and ``test``: one or more UTF-8 files, read in order.
    ``vocabulary``: the characters to keep, "ascii" for the printable ones and the newline, or None for all of the
    training text. Without a test part, the last ``test_share`` of each text becomes it.
    """

    train: Path | tuple[Path, ...]
    length: int
    test: Path | tuple[Path, ...] | None = None
    test_share: float = 0.1
    vocabulary: str | None = None

    def __post_init__(self) -> None:
        check_selection(self.test_share, 0)
        whole("sequence_length", self.length)
        if self.vocabulary is not None and (not isinstance(self.vocabulary, str) or not self.vocabulary):
            raise WorkloadError("vocabulary", value=self.vocabulary, allowed='the characters as a string, or "ascii"')

    def __call__(self) -> Data:
        """Read the files. Raises: WorkloadError."""
        texts = read_texts(self.train)
        tests: list[str] = []
        if self.test is not None:
            tests = read_texts(self.test)
        else:
            cuts = [len(text) - int(len(text) * self.test_share) for text in texts]
            tests = [text[cut:] for text, cut in zip(texts, cuts, strict=True)]
            texts = [text[:cut] for text, cut in zip(texts, cuts, strict=True)]
        train = "".join(texts)
        characters = PRINTABLE if self.vocabulary == "ascii" else self.vocabulary or train
        numbers = {character: number for number, character in enumerate(sorted(set(characters)))}
        return Data(self._pieces(train, numbers), self._pieces("".join(tests), numbers))

    def _pieces(self, text: str, numbers: dict[str, int]) -> Pair:
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


def read_texts(files: Path | tuple[Path, ...]) -> list[str]:
    """Read the text of each file, with "\\n" between lines. Raises: WorkloadError."""
    return [_read(file) for file in (files if isinstance(files, tuple) else (files,))]


def _read(path: Path) -> str:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise WorkloadError("no such data file", value=str(path), hint="give the path of a text file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"cannot read {path}", value=str(error), allowed="a text in UTF-8") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")
