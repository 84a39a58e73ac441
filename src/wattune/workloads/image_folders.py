"""Image files, each in the folder of its class."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from wattune.errors import WorkloadError
from wattune.workloads.data import Data
from wattune.workloads.sample_selection import Pair, check_selection, draw_share, select_classes, split_indices
from wattune.workloads.values import attempt, whole

MAX_BYTES = 8 * 2**30
"""Limit on the bytes of all images, which are held in memory."""

SUFFIXES = (".png", ".jpg", ".jpeg")
"""Endings of image files; other files are ignored."""

_PIXELS = 2**26  # limit for one image
_GREY, _COLOUR = ("1", "L", "LA"), ("P", "RGB", "RGBA", "CMYK")  # Pillow's modes of up to 8 bits a channel


@dataclass(frozen=True)
class ImageFolders:
    """PNG and JPEG files as (N, channels, size, size), uint8. Each file is in the folder of its class: ``ship/1.png``.

    Classes are numbered in the order of their folders' names. ``classes``: labels to keep, relabelled 0, 1, ... in that
    order. ``share``: share of the remaining training samples to use, drawn with ``split_seed``. Without a folder
    ``test``, ``test_share`` of the training samples is split off. ``size``: pixels to resize to, which may be None if
    all images have the same size.
    """

    train: Path
    test: Path | None = None
    classes: tuple[int, ...] | None = None
    share: float = 1.0
    test_share: float = 0.2
    split_seed: int = 0
    size: int | None = None
    channels: int = 3

    def __post_init__(self) -> None:
        check_selection(self.test_share, self.split_seed, classes=self.classes, share=self.share)
        if self.size is not None and whole("size of the images", self.size) > 1024:
            raise WorkloadError("size of the images", value=self.size, allowed="1 to 1024 pixels")
        if self.channels not in (1, 3):
            raise WorkloadError("channels of the images", value=self.channels, allowed="1 or 3")

    def __call__(self) -> Data:
        """Read the files. Raises: WorkloadError."""
        _check_pillow()
        names = _class_names(self.train)
        files, labels = draw_share(*self._listed(self.train, names), self.share, self.split_seed)
        if self.test is not None:
            return Data(self._read(files, labels), self._read(*self._listed(self.test, names)))
        train, test = split_indices(len(files), self.test_share, self.split_seed)
        return Data(self._read(files[train], labels[train]), self._read(files[test], labels[test]))

    def _listed(self, folder: Path, names: list[str]) -> Pair:
        """Paths and labels of the files of one part, with the classes to keep."""
        own_names = _class_names(folder)
        if not own_names:
            raise WorkloadError(f"no folders with images in {folder}", allowed=", ".join(SUFFIXES))
        if unknown := sorted(set(own_names) - set(names)):
            raise WorkloadError(f"a class of {folder} that is not in the training part", value=unknown[0])
        listed = [(file, names.index(name)) for name in own_names for file in _files(folder / name)]
        files = np.array([file for file, _ in listed], dtype=object)
        return select_classes(files, np.array([label for _, label in listed], dtype=np.int64), self.classes)

    def _read(self, files: NDArray[np.generic], labels: NDArray[np.generic]) -> Pair:
        images: NDArray[np.uint8] | None = None
        for row, file in enumerate(files):
            image = _decoded(Path(str(file)), self.size, self.channels)
            if images is None:
                if (size := image.nbytes * len(files)) > MAX_BYTES:
                    raise WorkloadError(
                        f"bytes of the images beside {file}",
                        value=size,
                        allowed=f"up to {MAX_BYTES}",
                        hint="give a smaller size or share, or your own loaders",
                    )
                images = np.empty((len(files), *image.shape), np.uint8)
            if image.shape != images.shape[1:]:
                raise WorkloadError(
                    f"size of {file}",
                    value=f"{image.shape[1]}x{image.shape[2]}",
                    allowed=f"{images.shape[2]}x{images.shape[3]}, as the others have",
                    hint="give the size to resize to",
                )
            images[row] = image
        return np.empty((0, self.channels, 1, 1), np.uint8) if images is None else images, labels


def _class_names(folder: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and _files(entry))
    except OSError as error:
        raise WorkloadError(f"cannot read the folder {folder}", value=str(error), allowed="a folder") from error


def _files(folder: Path) -> list[Path]:
    return sorted(
        file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
    )


def _decoded(file: Path, size: int | None, channels: int) -> NDArray[np.uint8]:
    from PIL import Image

    def opened() -> NDArray[np.uint8]:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=("PNG", "JPEG")) as image:
                if image.width * image.height > _PIXELS:
                    raise WorkloadError(f"pixels of {file}", value=image.width * image.height, allowed=f"{_PIXELS}")
                if image.mode not in _GREY + _COLOUR:
                    raise WorkloadError(f"colour mode of {file}", value=image.mode, allowed=", ".join(_GREY + _COLOUR))
                # Pillow warns about a palette with transparency unless it is converted to RGBA first.
                opaque = image.convert("RGBA") if "transparency" in image.info else image
                plain = opaque.convert("RGB" if channels == 3 else "L")
                if size is not None and plain.size != (size, size):
                    plain = plain.resize((size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(plain, np.uint8)
        return pixels.transpose(2, 0, 1) if channels == 3 else pixels[None]

    pixels: NDArray[np.uint8] = attempt(f"cannot read {file}", opened)  # Pillow raises anything on a damaged file
    return pixels


def _check_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise WorkloadError(
            "reading image files needs the package Pillow", hint="pip install 'wattune[data]'"
        ) from error
