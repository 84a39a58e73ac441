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
from wattune.workloads.values import flag, number, whole

PRINTABLE = "\n" + string.digits + string.ascii_letters + string.punctuation + " "
"""What ``vocabulary = "ascii"`` stands for: letters, digits, punctuation, space and newline, 96 characters."""


@dataclass(frozen=True)
class Npz:
    """Numpy's ``.npz`` files with the arrays ``images`` and ``labels``.

    Without a ``test`` file, ``test_share`` of ``train`` is split off by ``split_seed``. ``classes`` are the labels
    to keep; they become 0, 1, ... in that order.
    """

    train: Path
    test: Path | None = None
    test_share: float = 0.2
    split_seed: int = 0
    classes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_split(self.test_share, self.split_seed)
        check_classes(self.classes)

    def __call__(self) -> Data:
        """Read the files. Raises: WorkloadError."""
        train = chosen(*_read_npz(self.train), self.classes)
        if self.test is None:
            return split(*train, self.test_share, self.split_seed)
        return Data(train, chosen(*_read_npz(self.test), self.classes))


@dataclass(frozen=True)
class Text:
    """A text, cut into pieces of ``length`` characters; the target of each character is the one after it.

    ``vocabulary``: the characters that count, "ascii" for the printable ones and the newline, or None for those of
    the training text. Characters beyond it are left out. Without a ``test`` file, the end of the text, ``test_share``
    of it, is the test part.
    """

    train: Path
    length: int
    test: Path | None = None
    test_share: float = 0.1
    vocabulary: str | None = None

    def __post_init__(self) -> None:
        check_split(self.test_share, 0)
        whole("sequence_length", self.length)
        if self.vocabulary is not None and (not isinstance(self.vocabulary, str) or not self.vocabulary):
            raise WorkloadError("vocabulary", value=self.vocabulary, allowed='a text of characters, or "ascii"')

    def __call__(self) -> Data:
        """Read the files. Raises: WorkloadError."""
        train = _read_text(self.train)
        if self.test is None:
            cut = len(train) - int(len(train) * self.test_share)
            train, test = train[:cut], train[cut:]
        else:
            test = _read_text(self.test)
        known = PRINTABLE if self.vocabulary == "ascii" else self.vocabulary or train
        numbers = {character: number for number, character in enumerate(sorted(set(known)))}
        return Data(self._pieces(train, numbers), self._pieces(test, numbers))

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


def chosen(
    x: NDArray[np.generic], y: NDArray[np.generic], classes: tuple[int, ...] | None
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """The samples of these classes, relabelled 0, 1, ... in their order. Raises: WorkloadError for one without any."""
    if classes is None:
        return x, y
    if missing := sorted(set(classes) - set(np.unique(y).tolist())):
        raise WorkloadError("classes that the data does not have", value=missing)
    keep = np.isin(y, classes)
    places = np.argsort(classes)
    return x[keep], places[np.searchsorted(classes, y[keep], sorter=places)].astype(np.int64)


def split(x: NDArray[np.generic], y: NDArray[np.generic], test_share: float, seed: int) -> Data:
    """Training and test part, drawn by ``seed``. Raises: WorkloadError where one of them is empty."""
    order = np.random.default_rng(seed).permutation(len(x))
    test, train = np.split(order, [int(len(x) * test_share)])
    return Data((x[train], y[train]), (x[test], y[test]))


def check_split(test_share: float, seed: int) -> None:
    """Raises: WorkloadError where the data cannot be split so."""
    number("test_share", test_share, above=0, below=1)
    whole("split_seed", seed, least=0)


def check_classes(classes: tuple[int, ...] | None) -> None:
    """Raises: WorkloadError where these are no classes to keep."""
    if classes is None:
        return
    for label in classes:
        whole("a label in classes", label, least=0)
    if not classes or len(set(classes)) != len(classes):
        raise WorkloadError("classes", value=list(classes), allowed="at least one, each once")


def _read_npz(path: Path) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            if missing := {"images", "labels"} - set(file.files):
                raise WorkloadError(f"{path} lacks the array", value=sorted(missing)[0], allowed="images and labels")
            return file["images"], file["labels"]
    except FileNotFoundError as error:
        raise WorkloadError("no such data file", value=str(path), hint="give the path of an .npz file") from error
    except (OSError, ValueError, EOFError, TypeError, zlib.error, zipfile.BadZipFile) as error:
        raise WorkloadError(f"cannot read {path}", value=str(error), allowed="a whole .npz file") from error


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise WorkloadError("no such data file", value=str(path), hint="give the path of a text file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(f"cannot read {path}", value=str(error), allowed="a text file in UTF-8") from error
