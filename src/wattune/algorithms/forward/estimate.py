"""The estimator of a batch's gradient: the modules of a model in a row, each with its own delay, in one thread.

Module k of K works on a batch with parameters that are K-1-k updates old, as in a pipeline in which its derivative
arrives that much later. In one thread the old parameters are stored instead, and a batch passes all modules at once:
the same results as those of the pipeline without any batch in flight. Without cuts there are no delays.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wattune.algorithms.base import Batch, Trainable, evaluated_loss
from wattune.algorithms.counting.aten import samples_of
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.alpha import Alpha, Schedule
from wattune.algorithms.forward.blocks import ExactEnd, PerturbedBlocks, blocks_of
from wattune.algorithms.forward.masks import RandomKey
from wattune.algorithms.forward.perturbed import Differences, LossOf, Perturbed
from wattune.algorithms.model_parts import parts

Perturbation = Literal["weights", "activities", "differences"]

DISTANCE = 1e-3
"""Distance of a central difference to either side. Source: Malladi et al. 2023, appendix (epsilon)."""

DualValue = tuple[Any, Any]
"""The value passed from module to module: activations (a batch's inputs before the first), and their tangent: None
without one, a list with one for each direction if activities are perturbed, the other side's activations in a central
difference."""


class Stage:
    """Module ``index`` of a row, which works with parameters that are ``lag`` updates old."""

    def __init__(self, index: int, perturbed: Any, lag: int = 0):
        self.index, self.perturbed, self.lag = index, perturbed, lag
        self.trained = [p for p in perturbed.module.parameters() if p.requires_grad]
        self._past: deque[list[Tensor]] = deque(maxlen=lag)

    def key(self, key: RandomKey) -> RandomKey:
        """The key of this module's random numbers."""
        return key._replace(module=self.index)

    def remember(self) -> None:
        """Store the parameters before an update."""
        if self.lag:
            self._past.append([p.detach().clone() for p in self.trained])

    def forget(self) -> None:
        """Drop the old parameters: the next batches work with younger ones."""
        self._past.clear()

    @contextmanager
    def delayed(self) -> Iterator[None]:
        """Give the parameters their values of ``lag`` updates ago, or the first since ``forget``, by reference."""
        if not self._past:
            yield
            return
        present = [p.data for p in self.trained]
        for parameter, old in zip(self.trained, self._past[0], strict=True):
            parameter.data = old
        try:
            yield
        finally:
            for parameter, value in zip(self.trained, present, strict=True):
                parameter.data = value


def add_gradient(
    stages: Sequence[Stage], x: Any, loss_of: LossOf, key: RandomKey, share: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Add ``share`` times the gradient of a (micro-)batch, estimated along ``key``; inside ``forward_ad.level``.

    Returns: the mean loss, and its derivatives along the directions.
    """
    last = stages[-1]
    value: DualValue = x, None
    for stage in stages[:-1]:
        with stage.delayed():
            value = stage.perturbed.dual(*value, stage.key(key))
    loss, derivative = last.perturbed.loss_along(*value, loss_of, last.key(key))
    del value  # the tangents
    for stage in stages:
        with stage.delayed():
            x = stage.perturbed.add_gradient(x, derivative, stage.key(key), share)
    return loss, derivative


@dataclass(frozen=True)
class Estimate:
    """The estimator of a gradient; also a pass to be counted, when every layer that ever learns is learning.

    ``ends``: ends of modules with delays, in parts of the model.
    """

    perturb: Perturbation = "weights"
    directions: int = 1
    distance: float = DISTANCE
    schedule: Schedule = field(default_factory=Schedule)
    ends: tuple[int, ...] = ()

    def __call__(self, module: nn.Module, trainable: Trainable, batch: Batch, phase: Callable[[str], None]) -> None:
        """Add the estimate of one batch to the gradients of a copy of the model."""
        samples = samples_of(batch)
        stages, _ = self.applied(module, samples)
        older = []
        for stage in stages:
            stage.remember()  # one copy in each step; the older ones are there already
            older += [torch.empty_like(p) for p in stage.trained for _ in range(stage.lag - 1)]
        with self.running():
            self.add(stages, trainable, batch, RandomKey(0, self.final_step(samples)))

    def final_step(self, batch_size: int) -> int:
        """A step at which every layer that ever learns is learning."""
        return math.ceil(self.schedule.ramp_samples / batch_size)

    def applied(self, model: nn.Module, batch_size: int, *, in_flight: bool = False) -> tuple[list[Stage], Alpha]:
        """Perturb the modules of a model. With perturbed activities the last one has its exact gradient, and is the
        head of the schedule; without ``ends`` it is the last block.

        ``in_flight``: whether batches wait between the modules, so that perturbed weights need their directions later
        instead of their old values. Raises: WorkloadError if the model has to be cut and has no parts.
        """
        modules = self._modules(model)
        activities = self.perturb == "activities"
        alpha = Alpha(model, batch_size, self.schedule, modules[-1].parameters() if activities else None)
        stages = []
        for index, module in enumerate(modules):
            lag = len(modules) - 1 - index if self.ends else 0
            if activities and index == len(modules) - 1:
                stages.append(Stage(index, ExactEnd(module, alpha, self.directions)))
            else:
                perturbed = self.perturbed(module, alpha, keep=1 + lag * in_flight)
                stages.append(Stage(index, perturbed, lag if perturbed.needs_input or not in_flight else 0))
        return stages, alpha

    def perturbed(self, module: nn.Module, alpha: Alpha, *, keep: int = 1) -> Perturbed | PerturbedBlocks:
        """Perturb a module below the last; ``keep``: number of directions of weights to store."""
        if self.perturb == "activities":
            return PerturbedBlocks(module, alpha, self.directions)
        if self.perturb == "differences":
            return Differences(module, alpha, self.distance)
        return Perturbed(module, alpha, keep=keep)

    def _modules(self, model: nn.Module) -> list[nn.Module]:
        if len(self.ends) == 1 or (not self.ends and self.perturb != "activities"):
            return [model]
        layers = parts(model)
        last = len(layers) - len(blocks_of(layers)[-1])
        ends = self.ends or [end for end in (last, len(layers)) if end]
        return [nn.Sequential(*layers[a:b]) for a, b in pairwise([0, *ends])]

    def running(self) -> AbstractContextManager[None]:
        """Context of a step. Raises: InputError if another thread uses forward mode."""
        return torch.no_grad() if self.perturb == "differences" else forward_ad.level()

    def add(
        self, stages: Sequence[Stage], trainable: Trainable, batch: Batch, key: RandomKey, share: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Add ``share`` times the estimate of a micro-batch to the gradients.

        Returns: its mean loss, and the sum of the absolute derivatives, which is finite if each of them is.
        """
        x, y = batch
        loss_of = partial(evaluated_loss, trainable, target=y)
        passes = 1 if self.perturb == "activities" else self.directions  # all directions of activities at once
        losses, sizes = [], []
        for direction in range(passes):
            loss, derivative = add_gradient(stages, x, loss_of, key._replace(direction=direction), share / passes)
            losses.append(loss)
            sizes.append(derivative.abs().sum())
        return torch.stack(losses).mean(), torch.stack(sizes).sum()
