"""A model cut into modules, and one tick of the full pipeline as a pass that is counted: its work and its memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wattune.algorithms import forward_ad, operations
from wattune.algorithms.alpha import Alpha, Schedule
from wattune.algorithms.base import Batch, Trainable
from wattune.algorithms.parts import parts
from wattune.algorithms.perturbed import Perturb, Perturbed, loss_along
from wattune.algorithms.tangents import Key


@dataclass(frozen=True)
class Tick:
    """One tick of a full pipeline as a pass to be counted: the last module first, so that in each gap between modules
    no more than one pair waits. ``shapes`` are those of the parts' outputs for one sample."""

    ends: tuple[int, ...]
    perturb: Perturb
    local: bool
    schedule: Schedule
    shapes: tuple[tuple[int, ...], ...]

    def __call__(self, module: nn.Module, trainable: Trainable, batch: Batch, phase: Callable[[str], None]) -> None:
        """Run it on a copy of the model with its heads."""
        assert isinstance(module, Headed)
        modules = modules_of(module.model, self.ends)
        samples, gaps = operations.samples_of(batch), len(self.ends) - 1
        alpha = Alpha(module.model, samples, self.schedule)
        perturbed, heads = perturbed_of(modules, module.heads, self.perturb, alpha, local=self.local)
        step = math.ceil(self.schedule.risen_samples / samples)
        x, target = batch

        def pair(gap: int) -> list[Tensor]:
            shape = samples, *self.shapes[self.ends[gap] - 1]
            values = torch.empty(shape, device=operations.device_of(batch))
            return [values] if self.local else [values, torch.empty_like(values)]

        with forward_ad.level():
            # What waits: batches that have not come out with their targets, pairs in the gaps, and what second forward
            # passes will need of the batches that modules have passed on.
            targets = [_like(target) for _ in range(gaps)]
            waiting = [pair(gap) for gap in range(gaps)]
            kept = self._kept(perturbed, x, pair) if self.perturb == "activities" and not self.local else []
            shown = self._shown(perturbed)
            passed: tuple[Any, Tensor | None] = (x, None)
            inputs = []
            for k, stage in enumerate(perturbed):
                if k < gaps:
                    waiting[k] = []  # the module behind has taken it
                inputs.append(passed[0] if self.perturb == "activities" else None)
                before, passed = passed[0], stage.dual(*passed, Key(0, step, k))
                if k < gaps and not self.local:
                    waiting[k] = [t for t in passed if t is not None]
                    continue
                if k < gaps:
                    z = heads[k].dual(*passed, Key(0, step, k))
                    _, derivative = loss_along(trainable, *z, target, per_example=self.perturb == "activities")
                    heads[k].add_gradient(passed[0], derivative, Key(0, step, k))
                    stage.add_gradient(before, derivative, Key(0, step, k))
                    passed = passed[0], None
                    waiting[k] = [passed[0]]
                    continue
                _, derivative = loss_along(trainable, *passed, target, per_example=self.perturb == "activities")
                learning = [k] if self.local else range(gaps + 1)
                for j in learning:
                    given = inputs[j]
                    perturbed[j].add_gradient(derivative if given is None else given, derivative, Key(0, step, j))
            del targets, waiting, kept, shown

    def _shown(self, perturbed: Sequence[Perturbed]) -> list[Tensor]:
        # What a batch changes before its Step is out, once for each batch that is that far.
        shown: list[Tensor] = []
        for k, stage in enumerate(perturbed):
            trained = [p for p in stage.module.parameters() if p.requires_grad] if self.local else []
            changing = [*stage.module.buffers(), *trained]
            shown += [torch.empty_like(t) for _ in range(len(perturbed) - 1 - k) for t in changing]
        return shown

    def _kept(self, perturbed: Sequence[Perturbed], x: Any, pair: Callable[[int], list[Tensor]]) -> list[list[Any]]:
        kept = []
        for k, stage in enumerate(perturbed):
            for _ in range(len(perturbed) - 1 - k):
                given = _like(x) if k == 0 else pair(k - 1)[0]
                kept.append([given, *(torch.empty_like(p) for p in stage.module.parameters() if p.requires_grad)])
        return kept


def _like(values: Any) -> Any:
    return tree_map(lambda v: torch.empty_like(v) if isinstance(v, Tensor) else v, values)


class Headed(nn.Module):
    """A model and the heads of its modules; its forward pass is the model's."""

    def __init__(self, model: nn.Module, heads: nn.ModuleList):
        super().__init__()
        self.model, self.heads = model, heads

    def forward(self, x: Any) -> Any:
        """As the model."""
        return self.model(x)


def modules_of(model: nn.Module, ends: Sequence[int]) -> list[nn.Module]:
    """The modules of a model that is cut at these ends, which share its layers. Raises: WorkloadError."""
    if len(ends) == 1:
        return [model]
    found = parts(model)
    return [nn.Sequential(*found[a:b]) for a, b in pairwise([0, *ends])]


def perturbed_of(
    modules: Sequence[nn.Module],
    heads: nn.ModuleList,
    perturb: Perturb,
    alpha: Alpha,
    *,
    local: bool,
    side_by_side: bool = False,
) -> tuple[list[Perturbed], list[Perturbed]]:
    """The modules and their heads as they are perturbed; a head's own scale is 1, as a classifier's.

    A module that learns in the tick of its forward pass keeps the direction for it. The others draw it again and save
    its memory, unless they run side by side, which is done to be fast.
    """
    last = len(modules) - 1
    keeps = [1 if local or k == last else (last - k + 1) * side_by_side for k in range(len(modules))]
    return (
        [Perturbed(m, perturb=perturb, alpha=alpha, keep=keep) for m, keep in zip(modules, keeps, strict=True)],
        [Perturbed(head, perturb=perturb, alpha=Alpha(head, alpha.batch_size), keep=1) for head in heads],
    )
