"""Models to measure and count steps of, with random batches: learning does not matter here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Optimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def slow_sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Plain SGD, with a rate so low that weights hardly change."""
    return torch.optim.SGD(parameters, lr=1e-6)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Adam, with two moments per trained tensor."""
    return torch.optim.Adam(parameters)


@dataclass(frozen=True)
class SyntheticModel:
    """A model with random data: ``build`` makes the model, ``shape`` is that of one input; with ``text`` inputs are
    character indices and every position has a target."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int = 10
    text: bool = False
    name: str = ""
    make_optimizer: Optimizer = slow_sgd
    data_type: str = "fp32"
    host_s_per_sample: float = 0.0

    def model(self, seed: int) -> nn.Module:
        """The model with its initial weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.build()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy, mean over the batch."""
        return F.cross_entropy(output.flatten(0, -2), target.flatten())

    def optimizer(self, model: nn.Module, batch_size: int) -> torch.optim.Optimizer:
        """The optimizer of all trained parameters."""
        return self.make_optimizer([p for p in model.parameters() if p.requires_grad])

    def example(self, batch_size: int) -> tuple[Any, Any]:
        """A batch of random numbers, always the same."""
        draws = torch.Generator().manual_seed(0)
        if self.text:
            (length,) = self.shape
            text = torch.randint(0, self.classes, (batch_size, length + 1), generator=draws)
            return text[:, :-1].contiguous(), text[:, 1:].contiguous()
        x = torch.randn(batch_size, *self.shape, generator=draws)
        return x, torch.randint(0, self.classes, (batch_size,), generator=draws)


def perceptron(hidden: int, width: int, inputs: int | None = None) -> nn.Module:
    """Network of ``hidden`` layers of ``width`` units, on ``width`` inputs by default: many parameters, few
    activations."""
    layers: list[nn.Module] = []
    for index in range(hidden):
        layers += [nn.Linear(width if index or inputs is None else inputs, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def convolutions(depth: int, channels: int = 8, *, norm: bool = False) -> nn.Module:
    """Network of ``depth`` 3x3 convolutions at full resolution and a linear head: many activations, few parameters.

    ``norm``: with batch normalisation.
    """
    layers: list[nn.Module] = []
    for index in range(depth):
        layers.append(nn.Conv2d(channels if index else 3, channels, 3, padding=1))
        layers += [nn.BatchNorm2d(channels)] * norm
        layers.append(nn.ReLU())
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
