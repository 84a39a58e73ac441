"""Readers for the files in which well-known image sets are published: CIFAR, SVHN, MNIST's idx, STL-10."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from wattune.errors import WorkloadError
from wattune.workloads import plain_pickle
from wattune.workloads.archives import read_members, unzipped
from wattune.workloads.downloads import File, local
from wattune.workloads.image_sources import ImageSource, Listed, Part
from wattune.workloads.matlab import read_arrays
from wattune.workloads.values import choice

_CIFAR = {
    "cifar10": ("labels", {"train": [f"data_batch_{n}" for n in range(1, 6)], "test": ["test_batch"]}),
    "cifar100": ("fine_labels", {"train": ["train"], "test": ["test"]}),
}


@dataclass(frozen=True)
class _Archive(ImageSource):
    """One file with a test part in it, which may be left for ``test_share``."""

    archive: File

    @property
    def _own_test(self) -> bool:
        return True

    @property
    def _has_test_option(self) -> bool:
        return False


@dataclass(frozen=True)
class Cifar(_Archive):
    """CIFAR-10 or CIFAR-100: the archive of the "python version" (``cifar-10-python.tar.gz``), or its unpacked folder.

    Its members are pickles; they are read by ``plain_pickle``, which opens plain data only.
    Source: https://www.cs.toronto.edu/~kriz/cifar.html, "Dataset layout".
    """

    kind: Literal["cifar10", "cifar100"] = "cifar10"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("kind of CIFAR", self.kind, _CIFAR)

    def _read(self, parts: tuple[Part, ...]) -> dict[Part, Listed]:
        key, members = _CIFAR[self.kind]
        path = local(self.archive)
        # All of them, so that another archive is noticed.
        files = read_members(path, members["train"] + members["test"], f"the python version of {self.kind}")
        read: dict[Part, Listed] = {}
        for part in parts:
            pairs = [_batch(files[name], f"{name} of {path}", key) for name in members[part]]
            images, labels = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
            read[part] = Listed.of(images, labels, f"{path}, {part}")
        return read


@dataclass(frozen=True)
class Svhn(ImageSource):
    """Street View House Numbers, cropped digits: ``train_32x32.mat`` and ``test_32x32.mat`` (MATLAB 5).

    Without ``test``, ``test_share`` of ``train`` is split off. The label 10 stands for the digit 0.
    Source: http://ufldl.stanford.edu/housenumbers/, format 2.
    """

    train: File
    test: File | None = None

    @property
    def _own_test(self) -> bool:
        return self.test is not None

    def _read(self, parts: tuple[Part, ...]) -> dict[Part, Listed]:
        return {part: _mat(local(cast(File, getattr(self, part)))) for part in parts}


@dataclass(frozen=True)
class Idx(ImageSource):
    """MNIST, Fashion-MNIST and others in the idx format, as it is or with gzip; images (N, 1, height, width).

    Without ``test_images`` and ``test_labels``, ``test_share`` is split off.
    Source: http://yann.lecun.com/exdb/mnist/, "file formats".
    """

    images: File
    labels: File
    test_images: File | None = None
    test_labels: File | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.test_images is None) != (self.test_labels is None):
            raise WorkloadError("test_images and test_labels", value="one of them", allowed="both or none")

    @property
    def _own_test(self) -> bool:
        return self.test_images is not None

    def _read(self, parts: tuple[Part, ...]) -> dict[Part, Listed]:
        files = {"train": (self.images, self.labels), "test": (self.test_images, self.test_labels)}
        read: dict[Part, Listed] = {}
        for part in parts:
            images, labels = (local(cast(File, file)) for file in files[part])
            read[part] = Listed.of(_idx(images, 3)[:, None], _idx(labels, 1), f"{images} and {labels}")
        return read


@dataclass(frozen=True)
class Stl10(_Archive):
    """STL-10's binary files (``stl10_binary.tar.gz``, or the unpacked folder): its labelled images.

    They are 96x96, and resized to ``size``, 32 by default. The labels 1..10 become 0..9.
    Source: https://cs.stanford.edu/~acoates/stl10/, "Reading the binary files".
    """

    size: int | None = field(default=32, kw_only=True)

    def _read(self, parts: tuple[Part, ...]) -> dict[Part, Listed]:
        path = local(self.archive)
        names = [f"{part}_{letter}.bin" for part in parts for letter in "Xy"]
        files = read_members(path, names, "the binary files of STL-10")
        read: dict[Part, Listed] = {}
        for part in parts:
            pixels = np.frombuffer(files[f"{part}_X.bin"], np.uint8)
            labels = np.frombuffer(files[f"{part}_y.bin"], np.uint8)
            if len(pixels) != len(labels) * 3 * 96 * 96 or not _within(labels, 1, 10):
                raise WorkloadError(
                    f"{part}_X.bin and {part}_y.bin of {path}",
                    value=f"{len(pixels)} bytes of images, {len(labels)} labels",
                    allowed="3 x 96 x 96 bytes for each label, labels 1 to 10",
                )
            images = pixels.reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)  # stored column by column
            read[part] = Listed.of(images, labels - 1, f"{path}, {part}")
        return read


def _batch(content: bytes, name: str, key: str) -> tuple[NDArray[np.uint8], NDArray[np.generic]]:
    table = plain_pickle.loads(content, name)
    if not isinstance(table, dict):
        raise WorkloadError(name, value=type(table).__name__, allowed="a dictionary")
    # Texts of Python 2 come as bytes.
    table = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in table.items()}
    if missing := {"data", key} - table.keys():
        raise WorkloadError(f"{name} lacks the entry", value=min(missing))
    pixels = plain_pickle.array(table["data"], f"data of {name}")
    labels = plain_pickle.array(table[key], f"{key} of {name}")
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), 3 * 32 * 32):
        raise WorkloadError(
            f"data of {name}",
            value=f"{pixels.dtype} {pixels.shape} for {len(labels)} labels",
            allowed="3072 bytes for each label",
        )
    return cast(NDArray[np.uint8], pixels).reshape(-1, 3, 32, 32), labels


def _mat(path: Path) -> Listed:
    arrays = read_arrays(path, ("X", "y"))
    images, labels = (arrays.get(name, np.empty(0)) for name in ("X", "y"))
    count = images.shape[-1]
    if images.dtype != np.uint8 or images.shape != (32, 32, 3, count) or labels.shape != (count, 1):
        found = ", ".join(f"{name} {array.shape} {array.dtype}" for name, array in sorted(arrays.items()))
        raise WorkloadError(
            f"arrays of {path}", value=found or "none", allowed="X (32, 32, 3, N) in bytes and y (N, 1), as of SVHN"
        )
    if not np.isin(labels, np.arange(1, 11)).all():
        raise WorkloadError(f"labels of {path}", value=f"{labels.min()} to {labels.max()}", allowed="1 to 10")
    images = cast(NDArray[np.uint8], images).transpose(3, 2, 0, 1)
    return Listed.of(images, labels[:, 0].astype(np.int64) % 10, str(path))


def _idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    header_bytes = 4 + 4 * dimensions

    def stated(header: bytes) -> int:
        if len(header) < header_bytes or header[:4] != bytes([0, 0, 0x08, dimensions]):  # 8: unsigned bytes
            raise WorkloadError(
                f"{path} is no idx file of {dimensions} dimensions in bytes", value=header[:4].hex(" ") or "empty"
            )
        size = 1
        for length in struct.unpack(f">{dimensions}I", header[4:]):
            size *= length
        return header_bytes + size

    content = unzipped(path, header_bytes, stated)
    shape = struct.unpack(f">{dimensions}I", content[4:header_bytes])
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def _within(labels: NDArray[np.generic], least: int, most: int) -> bool:
    return len(labels) > 0 and bool(((labels >= least) & (labels <= most)).all())  # type: ignore[operator]
