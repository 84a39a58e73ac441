"""Image sources with samples, test part, size and channels to choose; image files in one folder per class."""

from __future__ import annotations

import io
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from wattune.datasets.archives import is_archive, members, names
from wattune.datasets.downloads import File, local
from wattune.errors import WorkloadError
from wattune.workloads.data import Data
from wattune.workloads.sample_selection import (
    check_classes,
    check_share,
    check_split,
    draw_share,
    select_classes,
    split_indices,
)
from wattune.workloads.values import attempt, whole

Part = Literal["train", "test"]

TEST_SHARE = 0.2
"""Default share of the samples that is split off if there is no test part."""

MAX_BYTES = 8 * 2**30
"""Limit on the bytes of all images, which are held in memory."""

_BATCH = 1000  # images resized at a time, because they are floats meanwhile


@dataclass(frozen=True)
class ImagePart:
    """One part of a data set: its N labels, and a function from n indices in 0..N-1 to images (n, c, h, w)."""

    labels: NDArray[np.int64]
    images: Callable[[NDArray[np.int64]], NDArray[np.uint8]]

    @classmethod
    def of(cls, images: NDArray[np.uint8], labels: NDArray[np.generic], name: str) -> ImagePart:
        """Make a part of arrays. Raises: WorkloadError if they are empty or their lengths differ."""
        if len(images) != len(labels) or len(images) == 0:
            raise WorkloadError(f"images and labels of {name}", value=f"{len(images)} and {len(labels)}")
        return cls(labels.astype(np.int64), lambda indices: images[indices])


@dataclass(frozen=True, kw_only=True)
class ImageSource(ABC):
    """Images as (N, channels, size, size), uint8.

    ``classes``: labels to keep, relabelled 0, 1, ... in that order. ``share``: share of the remaining training samples
    to use, drawn with ``split_seed``. ``test_share``: share of those to split off as the test part; None takes all of
    the data set's own test part. ``size``: pixels to resize to; ``channels``: 1 or 3; None leaves the images unchanged.
    """

    classes: tuple[int, ...] | None = None
    share: float = 1.0
    test_share: float | None = None
    split_seed: int = 0
    size: int | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        check_classes(self.classes)
        check_share(self.share)
        check_split(TEST_SHARE if self.test_share is None else self.test_share, self.split_seed)
        if self.size is not None and whole("size of the images", self.size) > 1024:
            raise WorkloadError("size of the images", value=self.size, allowed="1 to 1024 pixels")
        if self.channels is not None and self.channels not in (1, 3):
            raise WorkloadError("channels of the images", value=self.channels, allowed="1 or 3")
        if self.test_share is not None and self._has_test_option:
            raise WorkloadError("test_share beside a test part", value=self.test_share, allowed="one of the two")

    @property
    @abstractmethod
    def _own_test(self) -> bool:
        """True if there is a test part to read."""

    @property
    def _has_test_option(self) -> bool:
        """True if the user named a test part, which ``test_share`` would contradict."""
        return self._own_test

    @abstractmethod
    def _read(self, parts: tuple[Part, ...]) -> dict[Part, ImagePart]:
        """Read these parts of the data set. Raises: WorkloadError."""

    def __call__(self) -> Data:
        """Read the files. Raises: WorkloadError."""
        own = self.test_share is None and self._own_test
        read = self._read(("train", "test") if own else ("train",))
        train = read["train"]
        indices, labels = draw_share(*self._of_classes(train), self.share, self.split_seed)
        if own:
            test = read["test"]
            test_indices, test_labels = self._of_classes(test)
            return Data((self._images(train, indices), labels), (self._images(test, test_indices), test_labels))
        share = TEST_SHARE if self.test_share is None else self.test_share
        to_train, to_test = split_indices(len(indices), share, self.split_seed)
        return Data(
            (self._images(train, indices[to_train]), labels[to_train]),
            (self._images(train, indices[to_test]), labels[to_test]),
        )

    def _of_classes(self, part: ImagePart) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        return select_classes(np.arange(len(part.labels)), part.labels, self.classes)

    def _images(self, part: ImagePart, indices: NDArray[np.generic]) -> NDArray[np.uint8]:
        return fitted(part.images(indices.astype(np.int64)), self.size, self.channels)


def fitted(images: NDArray[np.uint8], size: int | None, channels: int | None) -> NDArray[np.uint8]:
    """Convert images (n, c, h, w) to another size and number of channels.

    Resizing is bilinear, antialiased when shrinking, and ignores the aspect ratio. Grey is 0.299 R + 0.587 G + 0.114 B
    (ITU-R BT.601); a grey image is repeated in each of three channels.
    """
    if channels == 3 and images.shape[1] == 1:
        images = np.repeat(images, 3, axis=1)
    elif channels == 1 and images.shape[1] == 3:
        weights = np.array([0.299, 0.587, 0.114], np.float32)
        images = np.rint(np.einsum("nchw,c->nhw", images, weights)).astype(np.uint8)[:, None]
    if size is None or images.shape[2:] == (size, size):
        return images
    resized = np.empty((*images.shape[:2], size, size), np.uint8)
    for start in range(0, len(images), _BATCH):
        part = torch.from_numpy(np.ascontiguousarray(images[start : start + _BATCH])).float()
        part = F.interpolate(part, (size, size), mode="bilinear", align_corners=False, antialias=True)
        resized[start : start + _BATCH] = part.round().clamp(0, 255).byte().numpy()
    return resized


SUFFIXES = (".png", ".jpg", ".jpeg")
"""Endings of image files; other files are ignored."""

_PIXELS = 2**26  # limit for one image
_GREY, _COLOUR = ("1", "L", "LA"), ("P", "RGB", "RGBA", "CMYK")  # Pillow's modes of up to 8 bits a channel


@dataclass(frozen=True)
class ImageFolders(ImageSource):
    """PNG and JPEG files, each in the folder of its class: ``train/ship/0001.png``.

    Classes are numbered in the order of their folders' names. ``train`` and ``test`` are folders or archives (tar.gz,
    tar, zip); ``train_folder`` and ``test_folder`` are folders inside them, "" for all of it. With ``test_folder``
    alone, the test part is in ``train`` too; with neither, ``test_share`` is split off.
    By default the images have three channels. ``size`` is required unless all have the same size.
    """

    train: File
    train_folder: str = ""
    test: File | None = None
    test_folder: str | None = None
    channels: int | None = field(default=3, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("train_folder", "test_folder"):
            folder = getattr(self, name)
            if folder is not None and not isinstance(folder, str):
                raise WorkloadError(name, value=folder, allowed="the name of a folder")
        if self.channels is None:
            raise WorkloadError("channels of images in files", value=None, allowed="1 or 3")

    @property
    def _own_test(self) -> bool:
        return self.test is not None or self.test_folder is not None

    def _read(self, parts: tuple[Part, ...]) -> dict[Part, ImagePart]:
        _pillow()
        train = local(self.train)
        folders = {"train": (train, self.train_folder)}
        if "test" in parts:
            folders["test"] = (train if self.test is None else local(self.test), self.test_folder or "")
        members_of = {path: names(_archive(path)) for path, _ in folders.values()}
        files = {part: _files(members_of[path], folder) for part, (path, folder) in folders.items()}
        classes = sorted({name for name, _ in files["train"]})
        read: dict[Part, ImagePart] = {}
        for part in parts:
            path, folder = folders[part]
            if not files[part]:
                raise WorkloadError(
                    f"no folders with images in {path}", value=folder or ".", allowed=", ".join(SUFFIXES)
                )
            if unknown := sorted({name for name, _ in files[part]} - set(classes)):
                raise WorkloadError(f"a class of {path} that is not in the training part", value=unknown[0])
            labels = np.array([classes.index(name) for name, _ in files[part]], dtype=np.int64)
            read[part] = ImagePart(
                labels, _Decoder(path, [file for _, file in files[part]], self.size, self.channels or 3)
            )
        return read


@dataclass(frozen=True)
class _Decoder:
    """Decode the files at n indices into an array (n, channels, height, width), reading no others."""

    path: Path
    files: list[str]
    size: int | None
    channels: int

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
        rows = {self.files[index]: row for row, index in enumerate(indices.tolist())}
        images: NDArray[np.uint8] | None = None
        for name, content in members(self.path, lambda name: name in rows):
            image = _decoded(content, f"{name} of {self.path}", self.size, self.channels)
            if images is None:
                if (size := image.nbytes * len(rows)) > MAX_BYTES:
                    raise WorkloadError(
                        f"bytes of the images of {self.path}",
                        value=size,
                        allowed=f"up to {MAX_BYTES}",
                        hint="give a smaller size or share, or your own loaders",
                    )
                images = np.empty((len(rows), *image.shape), np.uint8)
            if image.shape != images.shape[1:]:
                raise WorkloadError(
                    f"size of {name} of {self.path}",
                    value=f"{image.shape[1]}x{image.shape[2]}",
                    allowed=f"{images.shape[2]}x{images.shape[3]}, as the others have",
                    hint="give the size to resize to",
                )
            images[rows[name]] = image
        return np.empty((0, self.channels, 1, 1), np.uint8) if images is None else images


def _decoded(content: bytes, name: str, size: int | None, channels: int) -> NDArray[np.uint8]:
    from PIL import Image

    def opened() -> NDArray[np.uint8]:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(content), formats=("PNG", "JPEG")) as image:
                if image.width * image.height > _PIXELS:
                    raise WorkloadError(f"pixels of {name}", value=image.width * image.height, allowed=f"{_PIXELS}")
                if image.mode not in _GREY + _COLOUR:
                    raise WorkloadError(f"colour mode of {name}", value=image.mode, allowed=", ".join(_GREY + _COLOUR))
                # Pillow warns about a palette with transparency unless it is converted to RGBA first.
                opaque = image.convert("RGBA") if "transparency" in image.info else image
                plain = opaque.convert("RGB" if channels == 3 else "L")
                if size is not None and plain.size != (size, size):
                    plain = plain.resize((size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(plain, np.uint8)
        return pixels.transpose(2, 0, 1) if channels == 3 else pixels[None]

    pixels: NDArray[np.uint8] = attempt(f"cannot read {name}", opened)  # Pillow raises anything on a damaged file
    return pixels


def _files(paths: list[str], folder: str) -> list[tuple[str, str]]:
    """(class, member) of each image in a folder of ``folder``."""
    prefix = "".join(f"{part}/" for part in PurePosixPath(folder).parts)
    images = []
    for name in paths:
        label, _, file = name.removeprefix(prefix).partition("/")
        if not name.startswith(prefix) or not file or "/" in file or file.startswith("."):
            continue
        if file.lower().endswith(SUFFIXES):
            images.append((label, name))
    return images


def _archive(path: Path) -> Path:
    if not is_archive(path):
        raise WorkloadError(f"{path} is not a folder or an archive", allowed="a folder, or a tar.gz, tar or zip file")
    return path


def _pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise WorkloadError(
            "reading image files needs the package Pillow", hint="pip install 'wattune[data]'"
        ) from error
