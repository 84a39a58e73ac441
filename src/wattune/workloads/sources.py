"""Where a workload file's data comes from: each source is a callable that reads it when it is first needed."""

from __future__ import annotations

import string
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from wattune.errors import WorkloadError
from wattune.workloads.data import Data
from wattune.workloads.downloads import File, local
from wattune.workloads.selection import check_classes, check_share, check_split, chosen, drawn, split
from wattune.workloads.texts import read_texts
from wattune.workloads.values import flag, number, whole

PRINTABLE = "\n" + string.digits + string.ascii_letters + string.punctuation + " "
"""What ``vocabulary = "ascii"`` stands for: letters, digits, punctuation, space and newline, 96 characters."""


@dataclass(frozen=True)
class Npz:
    """Numpy's ``.npz`` files with the arrays ``images`` and ``labels``, or ``inputs`` and ``targets``.

    ``classes`` are the labels to keep; they become 0, 1, ... in that order. ``share`` of the training samples that
    are left is drawn by ``split_seed``. Without a ``test`` file, ``test_share`` of those is split off by it.
    """

    train: File
    test: File | None = None
    test_share: float = 0.2
    split_seed: int = 0
    classes: tuple[int, ...] | None = None
    share: float = 1.0

    def __post_init__(self) -> None:
        check_split(self.test_share, self.split_seed)
        check_classes(self.classes)
        check_share(self.share)

    def __call__(self) -> Data:
        """Read the files. Raises: WorkloadError."""
        train = drawn(*chosen(*_read_npz(local(self.train)), self.classes), self.share, self.split_seed)
        if self.test is None:
            return split(*train, self.test_share, self.split_seed)
        return Data(train, chosen(*_read_npz(local(self.test)), self.classes))


@dataclass(frozen=True)
class Text:
    """A text, cut into pieces of ``length`` characters; the target of each character is the one after it.

    ``train`` and ``test`` are files in UTF-8, archives or folders with such files, or several of them, read one after
    the other; ``train_members`` and ``test_members`` are the names of files in an archive, with ``*`` for any
    characters (default: all that end in .txt), and with ``test_members`` alone the test part is in ``train`` too.
    ``gutenberg``: only what stands between Project Gutenberg's header and footer.

    ``vocabulary``: the characters that count, "ascii" for the printable ones and the newline, or None for those of
    the training text. Characters beyond it are left out. Without a test part, the end of each text, ``test_share``
    of it, is one; or with a ``split_seed`` so many of the pieces, drawn by it.
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
            raise WorkloadError("vocabulary", value=self.vocabulary, allowed='a text of characters, or "ascii"')
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
        known = PRINTABLE if self.vocabulary == "ascii" else self.vocabulary or train
        numbers = {character: number for number, character in enumerate(sorted(set(known)))}
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
        used = count * self.length
        return codes[:used].reshape(count, self.length), codes[1 : used + 1].reshape(count, self.length)


@dataclass(frozen=True)
class Digits:
    """scikit-learn's 1,797 handwritten digits, 8x8, made larger to (1, size, size) with values 0..1.

    ``invert``: dark on light. ``noise``: standard deviation of noise that belongs to the images, the same at every
    reading. The split is by ``split_seed``.
    """

    size: int = 32
    classes: tuple[int, ...] | None = None
    invert: bool = False
    noise: float = 0.0
    test_share: float = 0.25
    split_seed: int = 0

    def __post_init__(self) -> None:
        check_split(self.test_share, self.split_seed)
        check_classes(self.classes)
        if not 8 <= whole("size of the digits", self.size) <= 512:
            raise WorkloadError("size of the digits", value=self.size, allowed="8 to 512 pixels")
        flag("invert", self.invert)
        number("noise", self.noise, least=0)

    def __call__(self) -> Data:
        """Make the images."""
        from sklearn.datasets import load_digits  # takes a second to import

        small, labels = load_digits(return_X_y=True)
        images = torch.from_numpy(small / 16).float().reshape(-1, 1, 8, 8)  # 17 shades of grey
        images = F.interpolate(images, (self.size, self.size), mode="bilinear", align_corners=False)
        if self.invert:
            images = 1 - images
        if self.noise:
            images += self.noise * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
        return split(*chosen(images.numpy(), labels, self.classes), self.test_share, self.split_seed)


def _read_npz(path: Path) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            names = ("inputs", "targets") if {"inputs", "targets"} & set(file.files) else ("images", "labels")
            if missing := set(names) - set(file.files):
                raise WorkloadError(
                    f"{path} lacks the array",
                    value=sorted(missing)[0],
                    allowed="images and labels, or inputs and targets",
                )
            return file[names[0]], file[names[1]]
    except FileNotFoundError as error:
        raise WorkloadError("no such data file", value=str(path), hint="give the path of an .npz file") from error
    except (OSError, ValueError, EOFError, TypeError, zlib.error, zipfile.BadZipFile) as error:
        raise WorkloadError(f"cannot read {path}", value=str(error), allowed="a whole .npz file") from error
