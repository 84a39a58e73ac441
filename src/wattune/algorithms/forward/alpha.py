"""Alpha: the share of the learning rate that layers below the head get, and its schedule over a training run.

AsyncFGD starts with an alpha of 1 at the classifier and 0 everywhere else for 10 epochs, and "subsequently, alpha is
gradually increased to 0.15 for specific layers". The paper leaves open what alpha multiplies, and how it grows. This is
a reconstruction: it multiplies the learning rate, so that it acts alike under every optimizer (Adam divides a scale of
the gradient out again), and rises linearly over 10 epochs more.

Source: Zhao, Zhang, Huo, Gu, AsyncFGD, NeurIPS 2023 (experimental settings).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from wattune.algorithms.model_parts import parts
from wattune.algorithms.spec import SpecOption, number, part_numbers, whole
from wattune.errors import InputError

EPOCHS = 10
"""Epochs of the head alone (Source: Zhao et al., NeurIPS 2023), and those of alpha's rise."""

FINAL_STEP = 2**62
"""A step at which every layer that ever learns is learning."""


@dataclass(frozen=True)
class Schedule:
    """A schedule of rates: 1 for the head, finally ``alpha`` for the layers below it, or for those in ``layers`` alone.

    ``layers``: numbers of parts of the model, as in "2/4"; what is in none of them, and not in the head, stays frozen.

    With ``epoch_samples`` (the training samples of one epoch) alpha is 0 for ``EPOCHS`` epochs and then rises linearly
    over as many; without, it applies from the first step.
    """

    alpha: float = 1.0
    epoch_samples: int | None = None
    layers: str | None = None

    OPTIONS: ClassVar[Mapping[str, SpecOption]] = {
        "alpha": number(0, "0 to 1", most=1.0),
        "epoch_samples": whole(1),
        "layers": part_numbers("alpha opens"),
    }
    """Options of an algorithm with this schedule."""

    def at(self, samples: float) -> float:
        """Alpha of the layers below the head after ``samples`` training samples."""
        if self.epoch_samples is None:
            return self.alpha
        return self.alpha * min(1.0, max(0.0, samples / self.epoch_samples / EPOCHS - 1))


class Alpha:
    """A schedule applied to one model in steps of ``batch_size`` samples, counted from 0.

    ``head``: parameters of the head, by default of the last layer with trained parameters. A layer whose alpha is 0 is
    not perturbed and does not change. Raises: for named layers, InputError if the model has fewer parts, WorkloadError
    if it has none.
    """

    def __init__(
        self,
        model: nn.Module,
        batch_size: int,
        schedule: Schedule | None = None,
        head: Iterable[nn.Parameter] | None = None,
    ):
        self.schedule, self.batch_size = schedule or Schedule(), batch_size
        if head is None:
            named = [(name, p) for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]
            last = named[-1][0].rpartition(".")[0] if named else ""
            head = [p for name, p in named if name.rpartition(".")[0] == last]
        self._head = {id(p) for p in head}
        below = [model]
        if self.schedule.layers:
            layers, opened = parts(model), [int(place) for place in self.schedule.layers.split("/")]
            if opened[-1] > len(layers):
                allowed = f"1 to {len(layers)}, the number of parts"
                raise InputError("layers of the algorithm", value=opened[-1], allowed=allowed)
            below = [layers[place - 1] for place in opened]
        self._below = {id(p) for layer in below for p in layer.parameters()}

    def learning(self, parameters: Iterable[nn.Parameter], step: int) -> list[nn.Parameter]:
        """List the parameters that are perturbed and change in this step."""
        rate = self.schedule.at(step * self.batch_size)
        learning = self._head | (self._below if rate else set())
        return [p for p in parameters if p.requires_grad and id(p) in learning]

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
        """Multiply the learning rate below the head, for the duration of the context."""
        groups, rate = optimizer.param_groups, self.schedule.at(step * self.batch_size)
        if 0 < rate < 1:  # what has a rate of 0 has no gradient
            optimizer.param_groups = [
                {**group, "params": own, "lr": group["lr"] * (1 if is_head else rate)}
                for is_head in (False, True)
                for group in groups
                if (own := [p for p in group["params"] if (id(p) in self._head) == is_head])
            ]
        try:
            yield
        finally:
            optimizer.param_groups = groups
