"""Models to measure and count steps of, with random batches: learning does not matter here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wattune.workloads import OptimizerRule
from wattune.workloads.models import CharacterTransformer, resnet8, resnet20

ADAM = OptimizerRule("adam")


@dataclass(frozen=True)
class SyntheticModel:
    """A model with random data: ``build`` makes the model, ``shape`` is that of one input; with ``text`` inputs are
    character indices and every position has a target. ``user``: the user's own batch size."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int = 10
    text: bool = False
    name: str = ""
    user: int = 32
    rule: OptimizerRule = ADAM
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
        """The optimizer by the model's rule."""
        return self.rule(model, batch_size)

    def example(self, batch_size: int) -> tuple[Any, Any]:
        """A batch of random numbers, always the same."""
        draws = torch.Generator().manual_seed(0)
        if self.text:
            (length,) = self.shape
            text = torch.randint(0, self.classes, (batch_size, length + 1), generator=draws)
            return text[:, :-1].contiguous(), text[:, 1:].contiguous()
        x = torch.randn(batch_size, *self.shape, generator=draws)
        return x, torch.randint(0, self.classes, (batch_size,), generator=draws)


def perceptron(hidden: int, width: int) -> nn.Module:
    """Network of ``hidden`` layers of ``width`` units, on as many inputs: many parameters, few activations."""
    layers = [layer for _ in range(hidden) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def convolutions(depth: int) -> nn.Module:
    """Network of ``depth`` 3x3 convolutions at full resolution and a linear head: many activations, few parameters."""
    layers = [layer for index in range(depth) for layer in (nn.Conv2d(8 if index else 3, 8, 3, padding=1), nn.ReLU())]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))


class Recurrent(nn.Module):
    """An LSTM of 128 units that reads characters."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.layer, self.head = nn.Embedding(96, 64), nn.LSTM(64, 128, batch_first=True), nn.Linear(128, 96)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 64) -> (n, 64, 96)."""
        output: Tensor = self.head(self.layer(self.token(x))[0])
        return output


_EACH = (
    SyntheticModel(lambda: convolutions(4), (3, 32, 32), name="CNN, 4 layers"),
    SyntheticModel(lambda: convolutions(16), (3, 32, 32), name="CNN, 16 layers"),
    SyntheticModel(lambda: convolutions(64), (3, 32, 32), name="CNN, 64 layers"),
    SyntheticModel(lambda: convolutions(64), (3, 64, 64), name="CNN, 64 layers, 64x64"),
    SyntheticModel(resnet8, (3, 32, 32), name="ResNet8"),
    SyntheticModel(resnet20, (3, 32, 32), name="ResNet20"),
    SyntheticModel(lambda: CharacterTransformer(width=64), (64,), 96, text=True, name="transformer, 6 layers of 64"),
    SyntheticModel(lambda: perceptron(8, 256), (256,), name="MLP, 8 x 256"),
    SyntheticModel(Recurrent, (64,), 96, text=True, name="LSTM"),
)
MODELS = {model.name: model for model in _EACH}
"""By their names, which travel to another process."""
