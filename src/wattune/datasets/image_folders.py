"""Image files in one folder per class, read from a folder or an archive."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from wattune.datasets.archives import is_archive, members, names
from wattune.datasets.downloads import File, local
from wattune.datasets.image_sources import MAX_BYTES, ImagePart, ImageSource, Part
from wattune.errors import WorkloadError
from wattune.workloads.values import attempt

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
