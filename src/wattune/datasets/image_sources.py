"""The base of all image sources: selection of samples, test part, size and channels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

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
from wattune.workloads.values import whole

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
