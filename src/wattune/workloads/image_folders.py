"""Images as files: a folder for each class, in a folder or in an archive that is not unpacked."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from wattune.errors import WorkloadError
from wattune.workloads.archives import is_archive, members, names
from wattune.workloads.downloads import File, local
from wattune.workloads.image_sources import MAX_BYTES, ImageSource, Listed, Part
from wattune.workloads.values import tried

SUFFIXES = (".png", ".jpg", ".jpeg")
"""Files of other kinds beside the images are passed over."""

_PIXELS = 2**26
_GREY, _COLOUR = ("1", "L", "LA"), ("P", "RGB", "RGBA", "CMYK")  # Pillow's names; of 8 bits and fewer


@dataclass(frozen=True)
class ImageFolders(ImageSource):
    """PNG and JPEG files, each in the folder of its class: ``train/ship/0001.png``.

    The classes are numbered by the names of their folders, sorted. ``train`` and ``test`` are folders or archives
    (tar.gz, tar, zip); ``train_folder`` and ``test_folder`` are folders in them, "" for the whole. Without ``test``
    and ``test_folder``, ``test_share`` is split off; with ``test_folder`` alone the test part is in ``train`` too.
    By default the images have three channels, and ``size`` is needed unless all have the same.
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

    def _read(self, parts: tuple[Part, ...]) -> dict[Part, Listed]:
        _pillow()
        train = local(self.train)
        places = {"train": (train, self.train_folder)}
        if "test" in parts:
            places["test"] = (train if self.test is None else local(self.test), self.test_folder or "")
        listed = {path: names(_archive(path)) for path, _ in places.values()}
        files = {part: _files(listed[path], folder) for part, (path, folder) in places.items()}
        classes = sorted({name for name, _ in files["train"]})
        read: dict[Part, Listed] = {}
        for part in parts:
            path, folder = places[part]
            if not files[part]:
                raise WorkloadError(f"no images in folders in {path}", value=folder or ".", allowed=", ".join(SUFFIXES))
            if unknown := sorted({name for name, _ in files[part]} - set(classes)):
                raise WorkloadError(f"a class of {path} that the training part does not have", value=unknown[0])
            labels = np.array([classes.index(name) for name, _ in files[part]], dtype=np.int64)
            read[part] = Listed(
                labels, _Decoder(path, [file for _, file in files[part]], self.size, self.channels or 3)
            )
        return read


@dataclass(frozen=True)
class _Decoder:
    """Makes arrays (n, channels, height, width) of the files that are asked for; reads no others."""

    path: Path
    files: list[str]
    size: int | None
    channels: int

    def __call__(self, places: NDArray[np.int64]) -> NDArray[np.uint8]:
        at = {self.files[place]: number for number, place in enumerate(places.tolist())}
        images: NDArray[np.uint8] | None = None
        for name, content in members(self.path, lambda name: name in at):
            image = _decoded(content, f"{name} of {self.path}", self.size, self.channels)
            if images is None:
                if (needed := image.nbytes * len(at)) > MAX_BYTES:
                    raise WorkloadError(
                        f"bytes of the images of {self.path}",
                        value=needed,
                        allowed=f"up to {MAX_BYTES}",
                        hint="give a smaller size or share, or loaders of your own",
                    )
                images = np.empty((len(at), *image.shape), np.uint8)
            if image.shape != images.shape[1:]:
                raise WorkloadError(
                    f"size of {name} of {self.path}",
                    value=f"{image.shape[1]}x{image.shape[2]}",
                    allowed=f"{images.shape[2]}x{images.shape[3]} as the others",
                    hint="give the size to resize to",
                )
            images[at[name]] = image
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
                    raise WorkloadError(f"kind of {name}", value=image.mode, allowed=", ".join(_GREY + _COLOUR))
                # A palette with transparency is warned about unless it goes by way of RGBA.
                whole = image.convert("RGBA") if "transparency" in image.info else image
                plain = whole.convert("RGB" if channels == 3 else "L")
                if size is not None and plain.size != (size, size):
                    plain = plain.resize((size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(plain, np.uint8)
        return pixels.transpose(2, 0, 1) if channels == 3 else pixels[None]

    found: NDArray[np.uint8] = tried(f"cannot read {name}", opened)  # Pillow raises anything on a damaged file
    return found


def _files(listed: list[str], folder: str) -> list[tuple[str, str]]:
    """(class, file) of the images that lie two deep in the folder."""

    start = "".join(f"{part}/" for part in PurePosixPath(folder).parts)
    found = []
    for name in listed:
        kind, _, file = name.removeprefix(start).partition("/")
        if not name.startswith(start) or not file or "/" in file or file.startswith("."):
            continue
        if file.lower().endswith(SUFFIXES):
            found.append((kind, name))
    return found


def _archive(path: Path) -> Path:
    if not is_archive(path):
        raise WorkloadError(f"{path} is no folder and no archive", allowed="a folder, or a tar.gz, tar or zip file")
    return path


def _pillow() -> None:
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise WorkloadError("images in files need the package Pillow", hint="pip install 'wattune[data]'") from error
