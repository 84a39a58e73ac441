"""The estimator of a batch's gradient: how a model's modules are perturbed, and one pass through all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn

from wattune.algorithms.base import Batch, Trainable, evaluated_loss
from wattune.algorithms.counting.aten import samples_of
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.alpha import FINAL_STEP, Alpha, Schedule
from wattune.algorithms.forward.blocks import ExactEnd, MiddleEnd, PerturbedBlocks, blocks_of
from wattune.algorithms.forward.masks import RandomKey
from wattune.algorithms.forward.perturbed import Differences, Perturbed
from wattune.algorithms.forward.stage import DualValue, Stage
from wattune.algorithms.model_parts import parts

Perturbation = Literal["weights", "activities", "differences"]

DISTANCE = 1e-3
"""Distance of a central difference to either side. Source: Malladi et al. 2023, appendix (epsilon)."""


@dataclass(frozen=True)
class Estimate:
    """The estimator of a gradient; also a pass to be counted, when every layer that ever learns is learning.

    ``ends``: ends of modules with delays, in parts of the model; without, there are no delays. ``has_exact_end``: the
    last of several modules with central differences has its exact gradient, as it has with perturbed activities.
    """

    perturb: Perturbation = "weights"
    directions: int = 1
    distance: float = DISTANCE
    schedule: Schedule = field(default_factory=Schedule)
    ends: tuple[int, ...] = ()
    has_exact_end: bool = False

    def __call__(self, module: nn.Module, trainable: Trainable, batch: Batch, phase: Callable[[str], None]) -> None:
        """Add the estimate of one batch to the gradients of a copy of the model."""
        samples = samples_of(batch)
        stages = self.stages(module, samples)
        older = []
        for stage in stages:
            stage.remember()  # one copy in each step; the older ones are there already
            older += [torch.empty_like(p) for p in stage.trained for _ in range(stage.lag - 1)]
        with self.running():
            self.add(stages, trainable, batch, RandomKey(0, FINAL_STEP))

    def stages(self, model: nn.Module, batch_size: int) -> list[Stage]:
        """Perturb the modules of a model. A last one with its exact gradient is the head of the schedule.

        With perturbed activities and without ``ends`` it is the last block.

        Raises: WorkloadError if the model has to be cut and has no parts.
        """
        activities, ends = self.perturb == "activities", self.ends
        exact = activities or (self.has_exact_end and len(ends) > 1)
        modules = [model]
        if len(ends) > 1 or (activities and not ends):
            layers = parts(model)
            last = len(layers) - len(blocks_of(layers)[-1])
            modules = [
                nn.Sequential(*layers[a:b]) for a, b in pairwise([0, *(ends or [last] * (last > 0) + [len(layers)])])
            ]
        alpha = Alpha(model, batch_size, self.schedule, modules[-1].parameters() if exact else None)
        lags = [len(modules) - 1 - index if ends else 0 for index in range(len(modules))]
        stages = [
            self.perturbed(module, alpha, k, lag) for k, (module, lag) in enumerate(zip(modules, lags, strict=True))
        ]
        if activities:
            stages[-1] = ExactEnd(modules[-1], alpha, self.directions, len(modules) - 1)
        elif exact:
            stages[-1] = MiddleEnd(modules[-1], alpha, self.distance, len(modules) - 1)
        return stages

    def perturbed(self, module: nn.Module, alpha: Alpha, index: int = 0, lag: int = 0) -> Stage:
        """Perturb a module below the last."""
        if self.perturb == "activities":
            return PerturbedBlocks(module, alpha, self.directions, index, lag)
        if self.perturb == "differences":
            return Differences(module, alpha, self.distance, index, lag)
        return Perturbed(module, alpha, index, lag)

    def running(self) -> AbstractContextManager[None]:
        """Context of a step. Raises: InputError if another thread uses forward mode."""
        return torch.no_grad() if self.perturb == "differences" else forward_ad.level()

    def add(
        self, stages: Sequence[Stage], trainable: Trainable, batch: Batch, key: RandomKey, share: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Add ``share`` times the estimate of a (micro-)batch to the gradients.

        Returns: its mean loss, and the sum of the absolute derivatives, which is finite if each of them is.
        """
        passes = 1 if self.perturb == "activities" else self.directions  # all directions of activities at once
        keys = [key._replace(direction=direction) for direction in range(passes)]
        results = [add_pass(stages, trainable, batch, one, share / passes) for one in keys]
        losses, derivatives = zip(*results, strict=True)
        return torch.stack(losses).mean(), torch.stack([d.abs().sum() for d in derivatives]).sum()


def add_pass(
    stages: Sequence[Stage], trainable: Trainable, batch: Batch, key: RandomKey, share: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Add ``share`` times the gradient of a (micro-)batch, estimated along ``key``; inside ``forward_ad.level``.

    Returns: the mean loss, and its derivatives along the directions.
    """
    x, y = batch
    value: DualValue = x, None
    for stage in stages[:-1]:
        with stage.delayed():
            value = stage.dual(*value, key._replace(module=stage.index))
    loss_of = partial(evaluated_loss, trainable, target=y)
    loss, derivative = stages[-1].loss_along(*value, loss_of, key._replace(module=stages[-1].index))
    del value  # the tangents
    for stage in stages:
        with stage.delayed():
            x = stage.add_gradient(x, derivative, key._replace(module=stage.index), share)
    return loss, derivative
