"""Readers for well-known image sets as they are published: CIFAR, SVHN, MNIST's idx files, STL-10."""

from __future__ import annotations

import io
import math
import struct
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from wattune.datasets.archives import read_members, unzipped
from wattune.datasets.downloads import File, local
from wattune.datasets.image_folders import ImagePart, ImageSource, Part
from wattune.errors import WorkloadError
from wattune.workloads.values import choice


class _CifarLayout(NamedTuple):
    """Records of ``labels`` bytes, the last of them the class (below ``classes``), and the 3 x 32 x 32 of an image."""

    archive: str
    labels: int
    classes: int
    members: dict[Part, list[str]]


_CIFAR: dict[str, _CifarLayout] = {
    "cifar10": _CifarLayout(
        "cifar-10-binary.tar.gz",
        1,
        10,
        {"train": [f"data_batch_{number}.bin" for number in range(1, 6)], "test": ["test_batch.bin"]},
    ),
    # The first label is the superclass, the second the class.
    "cifar100": _CifarLayout("cifar-100-binary.tar.gz", 2, 100, {"train": ["train.bin"], "test": ["test.bin"]}),
}

_READ_MAT = """
import sys
import numpy
from scipy.io import loadmat
try:
    arrays = loadmat(sys.argv[1], appendmat=False, variable_names=("X", "y"))
except Exception as error:
    sys.exit(" ".join(f"{type(error).__name__}: {error}".split()))
wanted = {name: numpy.asarray(arrays[name]) for name in ("X", "y") if name in arrays}
numpy.savez(sys.stdout.buffer, **{name: array for name, array in wanted.items() if array.dtype.kind in "iuf"})
"""


@dataclass(frozen=True)
class _Archive(ImageSource):
    """One file that includes a test part, which ``test_share`` can replace."""

    archive: File

    @property
    def _own_test(self) -> bool:
        return True

    @property
    def _has_test_option(self) -> bool:
        return False


@dataclass(frozen=True)
class Cifar(_Archive):
    """CIFAR-10 or CIFAR-100: the archive of the binary release (``cifar-10-binary.tar.gz``), or its unpacked folder.

    Source: https://www.cs.toronto.edu/~kriz/cifar.html, "Binary version".
    """

    kind: Literal["cifar10", "cifar100"] = "cifar10"

    def __post_init__(self) -> None:
        super().__post_init__()
        choice("kind of CIFAR", self.kind, _CIFAR)

    def _read(self, parts: tuple[Part, ...]) -> dict[Part, ImagePart]:
        layout = _CIFAR[self.kind]
        path = local(self.archive)
        # Read every part, so that a wrong archive is noticed.
        files = read_members(
            path,
            layout.members["train"] + layout.members["test"],
            f"the binary release of {self.kind}, {layout.archive}",
            hint="use the binary release: the pickles of the python release are not read",
        )
        return {
            part: ImagePart.of(
                *_records(b"".join(files[name] for name in layout.members[part]), layout, f"{part} part of {path}"),
                f"{path}, {part}",
            )
            for part in parts
        }


@dataclass(frozen=True)
class Svhn(ImageSource):
    """Street View House Numbers, cropped digits: ``train_32x32.mat`` and ``test_32x32.mat`` (MATLAB 5).

    Without ``test``, ``test_share`` of ``train`` is split off. The label 10 means the digit 0.
    Source: http://ufldl.stanford.edu/housenumbers/, format 2.
    """

    train: File
    test: File | None = None

    @property
    def _own_test(self) -> bool:
        return self.test is not None

    def _read(self, parts: tuple[Part, ...]) -> dict[Part, ImagePart]:
        return {part: _mat(local(cast(File, getattr(self, part)))) for part in parts}


@dataclass(frozen=True)
class Idx(ImageSource):
    """MNIST, Fashion-MNIST and others in the idx format, plain or gzip; images (N, 1, height, width).

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
            raise WorkloadError("test_images and test_labels", value="one of them", allowed="both or neither")

    @property
    def _own_test(self) -> bool:
        return self.test_images is not None

    def _read(self, parts: tuple[Part, ...]) -> dict[Part, ImagePart]:
        files = {"train": (self.images, self.labels), "test": (self.test_images, self.test_labels)}
        read: dict[Part, ImagePart] = {}
        for part in parts:
            images, labels = (local(cast(File, file)) for file in files[part])
            read[part] = ImagePart.of(_idx(images, 3)[:, None], _idx(labels, 1), f"{images} and {labels}")
        return read


@dataclass(frozen=True)
class Stl10(_Archive):
    """The labelled images of STL-10, from its binary files (``stl10_binary.tar.gz``, or the unpacked folder).

    They are 96x96 and resized to ``size``, 32 by default. The labels 1..10 become 0..9.
    Source: https://cs.stanford.edu/~acoates/stl10/, "Reading the binary files".
    """

    size: int | None = field(default=32, kw_only=True)

    def _read(self, parts: tuple[Part, ...]) -> dict[Part, ImagePart]:
        path = local(self.archive)
        names = [f"{part}_{letter}.bin" for part in parts for letter in "Xy"]
        files = read_members(path, names, "the binary files of STL-10")
        read: dict[Part, ImagePart] = {}
        for part in parts:
            pixels = np.frombuffer(files[f"{part}_X.bin"], np.uint8)
            labels = np.frombuffer(files[f"{part}_y.bin"], np.uint8)
            if len(pixels) != len(labels) * 3 * 96 * 96 or not _within(labels, 1, 10):
                raise WorkloadError(
                    f"{part}_X.bin and {part}_y.bin of {path}",
                    value=f"{len(pixels)} bytes of images, {len(labels)} labels",
                    allowed="3 x 96 x 96 bytes for each label, labels 1 to 10",
                )
            images = pixels.reshape(-1, 3, 96, 96).transpose(0, 1, 3, 2)  # the file is column-major
            read[part] = ImagePart.of(images, labels - 1, f"{path}, {part}")
        return read


def _records(content: bytes, layout: _CifarLayout, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    size = layout.labels + 3 * 32 * 32
    if len(content) % size:
        raise WorkloadError(f"bytes of the {name}", value=len(content), allowed=f"a multiple of {size}, an image each")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    images, labels = records[:, layout.labels :].reshape(-1, 3, 32, 32), records[:, layout.labels - 1]
    if len(labels) and labels.max() >= layout.classes:
        raise WorkloadError(f"a label in the {name}", value=int(labels.max()), allowed=f"0 to {layout.classes - 1}")
    return images, labels


def _mat(path: Path) -> ImagePart:
    arrays = _mat_arrays(path)
    images, labels = (arrays.get(name, np.empty(0)) for name in ("X", "y"))
    count = images.shape[-1]
    if images.dtype != np.uint8 or images.shape != (32, 32, 3, count) or labels.shape != (count, 1):
        shapes = ", ".join(f"{name} {array.shape} {array.dtype}" for name, array in sorted(arrays.items()))
        raise WorkloadError(
            f"arrays of {path}", value=shapes or "none", allowed="X (32, 32, 3, N) uint8 and y (N, 1), as in SVHN"
        )
    if not np.isin(labels, np.arange(1, 11)).all():
        raise WorkloadError(f"labels of {path}", value=f"{labels.min()} to {labels.max()}", allowed="1 to 10")
    images = cast(NDArray[np.uint8], images).transpose(3, 2, 0, 1)
    return ImagePart.of(images, labels[:, 0].astype(np.int64) % 10, str(path))


def _mat_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """Read the arrays X and y of a MATLAB file, if present and real, with scipy.

    scipy runs in a process of its own, because some damaged files crash it.
    """
    if not path.exists():
        raise WorkloadError("no such data file", value=str(path), hint="give the path of a .mat file")
    command = [sys.executable, "-c", _READ_MAT, str(path)]
    reader = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if reader.returncode:
        problem = reader.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        if reader.returncode < 0:
            problem = f"the reader crashed with signal {-reader.returncode}"
        raise WorkloadError(f"cannot read {path}", value=problem, allowed="a complete MATLAB 5 file, as SVHN's are")
    with np.load(io.BytesIO(reader.stdout), allow_pickle=False) as arrays:
        return dict(arrays)


def _idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    header_bytes = 4 + 4 * dimensions

    def stated(header: bytes) -> int:
        if len(header) < header_bytes or header[:4] != bytes([0, 0, 0x08, dimensions]):  # 0x08: unsigned bytes
            raise WorkloadError(
                f"{path} is not an idx file of bytes with {dimensions} dimensions", value=header[:4].hex(" ") or "empty"
            )
        return header_bytes + int(math.prod(struct.unpack(f">{dimensions}I", header[4:])))

    content = unzipped(path, header_bytes, stated)
    shape = struct.unpack(f">{dimensions}I", content[4:header_bytes])
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(shape)


def _within(labels: NDArray[np.generic], least: int, most: int) -> bool:
    return len(labels) > 0 and bool(((labels >= least) & (labels <= most)).all())  # type: ignore[operator]
