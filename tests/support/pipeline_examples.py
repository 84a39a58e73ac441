"""Small models to divide into modules for the tests of the pipeline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

import torch
from tests.support.algorithm_examples import Example, images, vectors
from torch import Tensor, nn

from wattune.algorithms import Step, Trainable, open_algorithm
from wattune.algorithms.forward.async_fgd import AsyncForwardGradient

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2),
    "momentum": lambda p: torch.optim.SGD(p, lr=1e-3, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
}


def layers(**options: Any) -> Example:
    """Four linear layers: what a bare derivative can be compared on."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)
        )

    return Example(build, vectors(), **options)


def noisy_layers(**options: Any) -> Example:
    """Dropout and batch normalisation in every module."""

    def build() -> nn.Module:
        block = [
            part
            for _ in range(4)
            for part in (nn.Linear(12, 12), nn.BatchNorm1d(12), nn.ReLU(inplace=True), nn.Dropout(0.2))
        ]
        return nn.Sequential(*block, nn.Linear(12, 4))

    return Example(build, vectors(), **options)


def separate_layers(**options: Any) -> Example:
    """Dropout and normalisation in which each example stands alone, as perturbed activities want it."""

    def build() -> nn.Module:
        block = [part for _ in range(4) for part in (nn.Linear(12, 12), nn.LayerNorm(12), nn.ReLU(), nn.Dropout(0.2))]
        return nn.Sequential(*block, nn.Linear(12, 4))

    return Example(build, vectors(), **options)


def noisy_images(**options: Any) -> Example:
    """A convolutional network with batch normalisation and dropout."""

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Dropout(0.1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 10),
        )

    return Example(build, images(8), **options)


class Meeting:
    """Where layers wait for each other: ``met`` is set once ``count`` of them compute at the same time."""

    def __init__(self, count: int):
        self.met = threading.Event()
        self.patience_s = 0.0
        self._count, self._inside, self._lock = count, 0, threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == self._count:
                self.met.set()
        self.met.wait(self.patience_s)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1


class Waiting(nn.Linear):
    """A layer that waits for the others of its meeting."""

    meeting: Meeting

    def __init__(self) -> None:
        super().__init__(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 12) -> (B, 12)."""
        with self.meeting:
            return super().forward(x)


class Failing(nn.Linear):
    """A layer that fails in its ``at``-th forward pass in training, counted from 1."""

    at = 10**9

    def __init__(self) -> None:
        super().__init__(12, 12)
        self.passes = 0

    def forward(self, x: Tensor) -> Tensor:
        """(B, 12) -> (B, 12)."""
        self.passes += 1
        if self.passes >= self.at:
            raise RuntimeError("the layer fell over")
        return super().forward(x)


def opened(trainable: Trainable, options: str, *, batch_size: int = 8, seed: int = 0) -> AsyncForwardGradient:
    """A new training with these options, of weights unless they say."""
    options += "" if "perturb=" in options else ",perturb=weights"
    algorithm = open_algorithm(f"async-fgd:{options}", trainable, batch_size, seed=seed)
    assert isinstance(algorithm, AsyncForwardGradient)
    return algorithm


def trained(
    trainable: Example, options: str, count: int = 9, batch_size: int = 8
) -> tuple[AsyncForwardGradient, list[Step]]:
    """A training of so many batches, and its Steps."""
    algorithm = opened(trainable, options, batch_size=batch_size)
    return algorithm, list(algorithm.run(islice(trainable.batches(batch_size), count)))
