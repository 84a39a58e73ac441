"""Losses and metrics by name, and the targets that a metric can reach."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

from wattune.errors import WorkloadError
from wattune.workloads.values import choice, number

Score = Callable[[Tensor, Tensor], Tensor | float]
"""(outputs, targets) of all test samples -> one number."""


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Mean cross entropy of logits (B, classes) and labels (B,), or (B, L, characters) and (B, L)."""
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


def mse(output: Tensor, target: Tensor) -> Tensor:
    """Mean squared error; a target (B,) stands for (B, 1)."""
    return F.mse_loss(output, target.reshape(output.shape))


def mae(output: Tensor, target: Tensor) -> Tensor:
    """Mean absolute error; a target (B,) stands for (B, 1)."""
    return F.l1_loss(output, target.reshape(output.shape))


def accuracy(output: Tensor, target: Tensor) -> float:
    """Share of labels that have the largest output: (B, classes) and (B,), or (B, L, characters) and (B, L)."""
    return (output.argmax(-1) == target).float().mean().item()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": cross_entropy,
    "mae": mae,
    "mse": mse,
}
"""Built-in losses by name: means over a batch."""


@dataclass(frozen=True)
class Metric:
    """A metric on the test part: "accuracy", "character_accuracy", "loss" (the workload's own), "mse", "mae", or the
    user's own.

    ``score`` takes the outputs and targets of all test samples; None is the workload's loss. ``direction``: "max" if a
    larger value is better, "min" if a smaller one is.
    """

    name: str
    direction: Literal["max", "min"]
    score: Score | None = None

    def __post_init__(self) -> None:
        choice("direction of a metric", self.direction, ("max", "min"))

    def reached(self, value: float, target: float) -> bool:
        """Return whether ``value`` is at least as good as ``target``; False for NaN."""
        return value >= target if self.direction == "max" else value <= target

    def check_target(self, target: float) -> None:
        """Check that the metric can reach the target, and not trivially. Raises: WorkloadError."""
        what = f"target of the metric {self.name}"
        number(what, target, above=0 if self.score in (None, accuracy, mse, mae) else -math.inf)
        if self.score is accuracy and target > 1:
            raise WorkloadError(what, value=target, allowed="at most 1, the highest accuracy")


METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy", "max", accuracy),
    "character_accuracy": Metric("character_accuracy", "max", accuracy),
    "loss": Metric("loss", "min"),
    "mae": Metric("mae", "min", mae),
    "mse": Metric("mse", "min", mse),
}
"""Built-in metrics by name."""
