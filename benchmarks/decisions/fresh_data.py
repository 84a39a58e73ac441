"""Data of the fresh workloads: three families from a folder, with an augmentation of its own for every sample.

A shift or flip shared by a whole mini-batch would be noise that grows with the batch size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.decisions.fresh_models import Characters, Convolutions, Perceptron, Stack

ALPHABET = 96
"""Size of the vocabulary: printable ASCII with the line break, and one symbol for everything else."""

CONTEXT = 12
TEXT_TESTS = 1200
IMAGE_TESTS = 600


@dataclass(frozen=True)
class Source:
    """Samples to train and to test with; ``draw(indices, generator)`` gives (inputs, labels) of training samples."""

    count: int
    draw: Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]
    tests: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Family:
    """A network, its pre-training data, and its workloads; the first one is the proxy."""

    name: str
    network: Callable[[int], Stack]
    pretraining_classes: int
    classes: int
    pretraining: str
    workloads: tuple[str, ...]
    budget: int
    load: Callable[[Path, str], Source]


# ------------------------------------------------------------------------------------------------------------- images


@cache
def _npz(path: Path) -> tuple[Tensor, Tensor]:
    with np.load(path) as file:
        return torch.from_numpy(file["images"]).float() / 255, torch.from_numpy(file["labels"])


def digits(folder: Path, name: str) -> Source:
    """MNIST at 14 x 14: classes 0-4 for pre-training; 5-9 upright, rotated by 90 degrees, or inverted and mirrored."""
    first = 0 if name == "pretraining" else 5

    def part(which: str) -> tuple[Tensor, Tensor]:
        images, labels = _npz(folder / "mnist_10k" / f"{which}.npz")
        chosen = (labels >= first) & (labels < first + 5)
        images = torch.nn.functional.avg_pool2d(images[chosen][:, None], 2)
        if name == "side":
            images = images.rot90(1, (2, 3))
        if name == "inverse":
            images = (1 - images).flip(3)
        return images - 0.3, labels[chosen] - first

    images, labels = part("train")
    tests, answers = part("test")
    return Source(
        len(images),
        lambda at, draw: (_noisy(_shifted(images[at], 1, draw), 0.15, draw), labels[at]),
        (tests[:IMAGE_TESTS], answers[:IMAGE_TESTS]),
    )


def photographs(folder: Path, name: str) -> Source:
    """Colour images of 16 x 16: a hundred classes for pre-training, CIFAR-10's classes 0-4 and 5-9."""
    which = "tin100_32" if name == "pretraining" else "cifar10_12k"
    first, classes = {"pretraining": (0, 100), "first": (0, 5), "second": (5, 5)}[name]

    def part(side: str) -> tuple[Tensor, Tensor]:
        images, labels = _npz(folder / which / f"{side}.npz")
        chosen = (labels >= first) & (labels < first + classes)
        return (torch.nn.functional.avg_pool2d(images[chosen], 2) - 0.47) * 4, labels[chosen] - first

    images, labels = part("train")
    tests, answers = part("test")

    def draw_some(at: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        shifted = _shifted(images[at], 2, draw)
        flips = torch.rand(at.shape, generator=draw) < 0.5
        return torch.where(flips[..., None, None, None], shifted.flip(-1), shifted), labels[at]

    return Source(len(images), draw_some, (tests[:IMAGE_TESTS], answers[:IMAGE_TESTS]))


def _shifted(images: Tensor, most: int, draw: torch.Generator) -> Tensor:
    """Shift each image by up to ``most`` pixels in either direction, with its edge repeated."""
    size = images.shape[-1]
    place = torch.arange(size)

    def places() -> Tensor:
        by = torch.randint(-most, most + 1, images.shape[:-3], generator=draw)
        return (place + by[..., None]).clamp(0, size - 1)[..., None, :]

    rows = places().transpose(-1, -2)[..., None, :, :].expand(images.shape)
    columns = places()[..., None, :, :].expand(images.shape)
    return images.gather(-2, rows).gather(-1, columns)


def _noisy(images: Tensor, level: float, draw: torch.Generator) -> Tensor:
    return images + level * torch.randn(images.shape, generator=draw)


# --------------------------------------------------------------------------------------------------------------- text


TEXTS = {
    "pretraining": ("wikitext2/valid.txt", "wikitext2/test.txt"),
    "shakespeare": ("tinyshakespeare/train.txt", "tinyshakespeare/test.txt"),
    "austen": ("austen/austen_train.txt", "austen/austen_test.txt"),
}


def texts(folder: Path, name: str) -> Source:
    """Text for predicting the next character: an encyclopedia for pre-training, plays, novels."""
    train, test = (_codes(folder / part) for part in TEXTS[name])
    at = torch.from_numpy(np.random.default_rng(0).integers(0, len(test) - CONTEXT, TEXT_TESTS))
    return Source(len(train) - CONTEXT, lambda places, draw: _windows(train, places), _windows(test, at))


@cache
def _codes(path: Path) -> Tensor:
    codes = np.frombuffer(path.read_text(encoding="utf-8").encode("ascii", "replace"), dtype=np.uint8)
    indices = np.where((codes >= 32) & (codes < 126), codes - 31, np.where(codes == 10, 95, 0))
    return torch.from_numpy(indices.astype(np.int64))


def _windows(codes: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    return codes[at[..., None] + torch.arange(CONTEXT)], codes[at + CONTEXT]


FAMILIES = (
    Family(
        "mnist",
        lambda classes: Perceptron(14 * 14, 48, classes),
        5,
        5,
        "pretraining",
        ("upright", "side", "inverse"),
        24576,
        digits,
    ),
    Family(
        "cifar",
        lambda classes: Convolutions(classes),
        100,
        5,
        "pretraining",
        ("first", "second"),
        20480,
        photographs,
    ),
    Family(
        "text",
        lambda classes: Characters(classes, CONTEXT),
        ALPHABET,
        ALPHABET,
        "pretraining",
        ("shakespeare", "austen"),
        32768,
        texts,
    ),
)
