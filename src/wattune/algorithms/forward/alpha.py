"""Alpha: the share of the learning rate that layers below the head get, and its schedule over a training run.

AsyncFGD starts with an alpha of 1 at the classifier and 0 everywhere else for 10 epochs, and "subsequently, alpha is
gradually increased to 0.15 for specific layers". The paper leaves open what alpha multiplies, and how it grows. This is
a reconstruction: it multiplies the learning rate, so that it acts alike under every optimizer (Adam divides a scale of
the gradient out again), and rises linearly over a given number of epochs.

Source: Zhao, Zhang, Huo, Gu, AsyncFGD, NeurIPS 2023 (experimental settings).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn

from wattune.algorithms.spec import SpecOption, number, whole
from wattune.errors import InputError


def _share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


@dataclass(frozen=True)
class Schedule:
    """A schedule of rates: 1 for the head, finally ``alpha`` for the layers below it.

    With ``epoch_samples`` (the training samples of one epoch) alpha is 0 for ``frozen_epochs`` and then rises linearly
    over ``rise_epochs``; without, it applies from the first step.
    """

    alpha: float = 1.0
    epoch_samples: int | None = None
    frozen_epochs: float = 10.0
    rise_epochs: float = 10.0

    OPTIONS: ClassVar[Mapping[str, SpecOption]] = {
        "alpha": SpecOption(_share, "0 to 1"),
        "epoch_samples": whole(1),
        "frozen_epochs": number(-1e-9, "0 or more"),
        "rise_epochs": number(-1e-9, "0 or more"),
    }
    """Options of an algorithm with this schedule."""

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Schedule:
        """Make the schedule from the options of an algorithm."""
        return cls(**{name: value for name, value in options.items() if name in cls.OPTIONS})

    @property
    def ramp_samples(self) -> float:
        """Training samples until alpha reaches its final value."""
        return 0 if self.epoch_samples is None else self.epoch_samples * (self.frozen_epochs + self.rise_epochs)

    def at(self, samples: float) -> float:
        """Alpha of the layers below the head after ``samples`` training samples."""
        if self.epoch_samples is None:
            return self.alpha
        epochs = samples / self.epoch_samples - self.frozen_epochs
        if epochs < 0:
            return 0.0
        return self.alpha * (min(1.0, epochs / self.rise_epochs) if self.rise_epochs else 1.0)


class Alpha:
    """A schedule applied to the parameters of one model, in steps of ``batch_size`` samples; ``step`` counts from 0.

    ``head``: the parameters of the head; None: those of the last layer that has trained ones. A layer whose alpha is 0
    is not perturbed and does not change.
    """

    def __init__(
        self,
        model: nn.Module,
        batch_size: int,
        schedule: Schedule | None = None,
        head: Iterable[nn.Parameter] | None = None,
    ):
        self.schedule = schedule or Schedule()
        self.batch_size = batch_size
        self._head = {id(p) for p in (_last_layer(model) if head is None else head)}

    def rate(self, parameter: nn.Parameter, step: int) -> float:
        """Factor of a parameter's learning rate."""
        if not parameter.requires_grad:
            return 0.0
        return 1.0 if id(parameter) in self._head else self.schedule.at(step * self.batch_size)

    def learning(self, parameters: Iterable[nn.Parameter], step: int) -> list[nn.Parameter]:
        """Those of the parameters that are perturbed and change in this step."""
        return [p for p in parameters if self.rate(p, step)]

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Check that the optimizer has learning rates to multiply, if any is multiplied. Raises: InputError."""
        if 0 < self.schedule.alpha < 1 and not all("lr" in group for group in optimizer.param_groups):
            raise InputError(
                "alpha of the algorithm with this optimizer",
                value=type(optimizer).__name__,
                allowed="an optimizer with a learning rate",
                hint="leave out alpha",
            )

    @contextmanager
    def applied(self, optimizer: torch.optim.Optimizer, step: int) -> Iterator[None]:
        """Divide the optimizer's groups by their rates for the duration of the context."""
        groups = optimizer.param_groups
        optimizer.param_groups = [part for group in groups for part in self._divided(group, step)]
        try:
            yield
        finally:
            optimizer.param_groups = groups

    def _divided(self, group: dict[str, Any], step: int) -> Iterator[dict[str, Any]]:
        for rate in sorted({self.rate(p, step) for p in group["params"]}):
            part = {**group, "params": [p for p in group["params"] if self.rate(p, step) == rate]}
            if rate != 1:
                part["lr"] = group["lr"] * rate
            yield part


def _last_layer(model: nn.Module) -> list[nn.Parameter]:
    trained = [
        (name.rpartition(".")[0], p) for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad
    ]
    return [p for layer, p in trained if layer == trained[-1][0]]
