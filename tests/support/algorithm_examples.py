"""Small models and data for the tests of the algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wattune.algorithms import Batch


class Example:
    """A Trainable from its parts; ``draw(n, generator)`` makes a batch."""

    def __init__(
        self,
        model: Callable[[], nn.Module],
        draw: Callable[[int, torch.Generator], Batch],
        *,
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = lambda p: torch.optim.Adam(p, lr=1e-2),
        data_type: str = "fp32",
        host_s_per_sample: float = 0.0,
    ) -> None:
        self.build, self.draw, self.build_optimizer = model, draw, optimizer
        self.data_type = data_type
        self.host_s_per_sample = host_s_per_sample
        self.examples = 0

    def model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.build()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, -2), target.flatten())

    def optimizer(self, model: nn.Module, batch_size: int) -> torch.optim.Optimizer:
        return self.build_optimizer([p for p in model.parameters() if p.requires_grad])

    def example(self, batch_size: int) -> Batch:
        self.examples += 1
        return self.draw(batch_size, torch.Generator().manual_seed(0))

    def batches(self, batch_size: int, *, start: int = 0) -> Iterator[Batch]:
        """Endless; batch i is the same whatever ``start`` was."""
        index = start // batch_size
        while True:
            yield self.draw(batch_size, torch.Generator().manual_seed(1000 + index))
            index += 1


def images(size: int = 32, classes: int = 10) -> Callable[[int, torch.Generator], Batch]:
    def draw(n: int, generator: torch.Generator) -> Batch:
        x = torch.randn(n, 3, size, size, generator=generator)
        return x, torch.randint(0, classes, (n,), generator=generator)

    return draw


def texts(length: int = 64, characters: int = 96) -> Callable[[int, torch.Generator], Batch]:
    def draw(n: int, generator: torch.Generator) -> Batch:
        text = torch.randint(0, characters, (n, length + 1), generator=generator)
        return text[:, :-1], text[:, 1:]

    return draw


def vectors(width: int = 12, classes: int = 4) -> Callable[[int, torch.Generator], Batch]:
    """Points that a linear map can classify."""

    def draw(n: int, generator: torch.Generator) -> Batch:
        x = torch.randn(n, width, generator=generator)
        return x, x[:, :classes].argmax(1)

    return draw


def perceptron(width: int = 12, hidden: int = 20, classes: int = 4, dropout: float = 0.0) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, classes))


def points(**options: Any) -> Example:
    """A perceptron without dropout or batch normalisation."""
    return Example(perceptron, vectors(), **options)


def noisy_points(**options: Any) -> Example:
    """A model with everything that a resumption can forget: buffers, dropout, the optimizer's state."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(12, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.3), nn.Linear(20, 4))

    return Example(build, vectors(), **options)
