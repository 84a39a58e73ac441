"""The optimizer of a workload, and its learning rate as a function of the batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from wattune.errors import WorkloadError
from wattune.workloads.values import choice, number, whole

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
}
"""Built-in optimizers by name."""

SCALINGS = {"sqrt": 0.5, "linear": 1.0, "none": 0.0}
"""Exponent of (batch size / reference batch size) in the learning rate.

Source: linear, Goyal et al. 2017, section 2.1; square root, Krizhevsky 2014, and arXiv 2502.18323, section 5.1.
"""


@dataclass(frozen=True)
class OptimizerRule:
    """An optimizer for every batch size: the learning rate at a reference batch size, and its scaling.

    ``weight_decay`` None is PyTorch's default for that optimizer; ``momentum`` is for "sgd" only.
    """

    name: str = "adam"
    learning_rate: float = 5e-4
    reference_batch_size: int = 128
    scaling: str = "sqrt"
    weight_decay: float | None = None
    momentum: float = 0.0

    def __post_init__(self) -> None:
        choice("optimizer", self.name, OPTIMIZERS)
        choice("scaling of the learning rate", self.scaling, SCALINGS)
        number("learning_rate", self.learning_rate, above=0)
        whole("reference_batch_size", self.reference_batch_size)
        if self.weight_decay is not None:
            number("weight_decay", self.weight_decay, least=0)
        number("momentum", self.momentum, least=0, below=1)
        if self.momentum and self.name != "sgd":
            raise WorkloadError(f"momentum of {self.name}", value=self.momentum, allowed="none; only sgd has momentum")

    def rate(self, batch_size: int) -> float:
        """The learning rate of this batch size."""
        return self.learning_rate * math.pow(batch_size / self.reference_batch_size, SCALINGS[self.scaling])

    def __call__(self, model: nn.Module, batch_size: int) -> torch.optim.Optimizer:
        """Make an optimizer of the parameters that train."""
        options: dict[str, Any] = {"lr": self.rate(batch_size)}
        if self.weight_decay is not None:
            options["weight_decay"] = self.weight_decay
        if self.name == "sgd":
            options["momentum"] = self.momentum
        return OPTIMIZERS[self.name]([p for p in model.parameters() if p.requires_grad], **options)
