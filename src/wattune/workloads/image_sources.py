"""What all sources of images have in common: which samples, which test part, what size and how many channels."""

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
from wattune.workloads.selection import check_classes, check_share, check_split, chosen, divided, drawn
from wattune.workloads.values import whole

Part = Literal["train", "test"]

TEST_SHARE = 0.2
"""Of the samples, where there is no test part and nothing else is said."""

MAX_BYTES = 8 * 2**30
"""Images are kept in memory, as bytes."""

_BATCH = 1000  # images that are resized at a time, as floats


@dataclass(frozen=True)
class Listed:
    """A part of a data set: the labels of its N images, and the images at some of the places 0..N-1 as (n, c, h, w)."""

    labels: NDArray[np.int64]
    images: Callable[[NDArray[np.int64]], NDArray[np.uint8]]

    @classmethod
    def of(cls, images: NDArray[np.uint8], labels: NDArray[np.generic], name: str) -> Listed:
        """Of arrays. Raises: WorkloadError where their lengths differ, or there is nothing in them."""
        if len(images) != len(labels) or len(images) == 0:
            raise WorkloadError(f"images and labels of {name}", value=f"{len(images)} and {len(labels)}")
        return cls(labels.astype(np.int64), lambda places: images[places])


@dataclass(frozen=True, kw_only=True)
class ImageSource(ABC):
    """Images as (N, channels, size, size), uint8.

    ``classes``: labels to keep, which become 0, 1, ... in that order. ``share`` of the training samples that are left
    is drawn by ``split_seed``. ``test_share`` of those is the test part; None: the data set's own test part, which is
    kept whole. ``size``: pixels to resize to, None: as they are. ``channels``: 1 or 3, None: as they are.
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
        """Whether there is a test part to read."""

    @property
    def _has_test_option(self) -> bool:
        """Whether a test part was asked for by name, so that ``test_share`` contradicts it."""
        return self._own_test

    @abstractmethod
    def _read(self, parts: tuple[Part, ...]) -> dict[Part, Listed]:
        """The parts of the data set. Raises: WorkloadError."""

    def __call__(self) -> Data:
        """Read the files. Raises: WorkloadError."""
        own = self.test_share is None and self._own_test
        read = self._read(("train", "test") if own else ("train",))
        train = read["train"]
        places, labels = self._kept(train)
        places, labels = drawn(places, labels, self.share, self.split_seed)
        if own:
            test = read["test"]
            test_places, test_labels = self._kept(test)
            return Data(
                (self._images(train, places), labels),
                (self._images(test, test_places), test_labels),
            )
        share = TEST_SHARE if self.test_share is None else self.test_share
        kept, left = divided(len(places), share, self.split_seed)
        return Data(
            (self._images(train, places[kept]), labels[kept]),
            (self._images(train, places[left]), labels[left]),
        )

    def _kept(self, part: Listed) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
        return chosen(np.arange(len(part.labels)), part.labels, self.classes)

    def _images(self, part: Listed, places: NDArray[np.generic]) -> NDArray[np.uint8]:
        return fitted(part.images(places.astype(np.int64)), self.size, self.channels)


def fitted(images: NDArray[np.uint8], size: int | None, channels: int | None) -> NDArray[np.uint8]:
    """Images (n, c, h, w) with another size and number of channels.

    Resized bilinearly, with antialiasing where they become smaller, and without regard to the proportions. Grey is
    0.299 R + 0.587 G + 0.114 B (ITU-R BT.601); a grey image in three channels is the same in each.
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
