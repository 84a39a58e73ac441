"""A model cut into modules, and one tick of the full pipeline as a pass whose work and memory are counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wattune.algorithms.base import Batch, Trainable
from wattune.algorithms.counting import aten
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.perturbation_scale import Alpha, Schedule
from wattune.algorithms.forward.perturbed import Perturb, Perturbed, loss_along
from wattune.algorithms.forward.random_keys import RandomKey
from wattune.algorithms.model_parts import parts


@dataclass(frozen=True)
class Tick:
    """One tick of a full pipeline as a pass to be counted: the last module first, so that at most one pair waits in
    each gap between modules. ``shapes``: shapes of the parts' outputs for one sample."""

    ends: tuple[int, ...]
    perturb: Perturb
    local: bool
    schedule: Schedule
    shapes: tuple[tuple[int, ...], ...]

    def __call__(self, module: nn.Module, trainable: Trainable, batch: Batch, phase: Callable[[str], None]) -> None:
        """Run the tick on a copy of the model with its heads."""
        assert isinstance(module, ModelWithHeads)
        modules = modules_of(module.model, self.ends)
        samples, gaps = aten.samples_of(batch), len(self.ends) - 1
        alpha = Alpha(module.model, samples, self.schedule)
        perturbed, heads = perturbed_of(modules, module.heads, self.perturb, alpha, local=self.local)
        step = math.ceil(self.schedule.ramp_samples / samples)
        x, target = batch

        def pair(gap: int) -> list[Tensor]:
            shape = samples, *self.shapes[self.ends[gap] - 1]
            values = torch.empty(shape, device=aten.device_of(batch))
            return [values] if self.local else [values, torch.empty_like(values)]

        with forward_ad.level():
            # Memory of the batches in flight: their targets, the pairs in the gaps, the inputs and parameters for
            # second forward passes, and the tensors that a batch changes before its Step is yielded.
            targets = [_like(target) for _ in range(gaps)]
            waiting = [pair(gap) for gap in range(gaps)]
            buffers = self._stored(perturbed, x, pair) if self.perturb == "activities" and not self.local else []
            extra = self._changed(perturbed)
            output: tuple[Any, Tensor | None] = (x, None)
            inputs = []
            for k, stage in enumerate(perturbed):
                if k < gaps:
                    waiting[k] = []  # the next module has taken it
                inputs.append(output[0] if self.perturb == "activities" else None)
                before, output = output[0], stage.dual(*output, RandomKey(0, step, k))
                if k < gaps and not self.local:
                    waiting[k] = [t for t in output if t is not None]
                    continue
                if k < gaps:
                    z = heads[k].dual(*output, RandomKey(0, step, k))
                    _, derivative = loss_along(trainable, *z, target, per_example=self.perturb == "activities")
                    heads[k].add_gradient(output[0], derivative, RandomKey(0, step, k))
                    stage.add_gradient(before, derivative, RandomKey(0, step, k))
                    output = output[0], None
                    waiting[k] = [output[0]]
                    continue
                _, derivative = loss_along(trainable, *output, target, per_example=self.perturb == "activities")
                learning = [k] if self.local else range(gaps + 1)
                for j in learning:
                    source = derivative if inputs[j] is None else inputs[j]
                    perturbed[j].add_gradient(source, derivative, RandomKey(0, step, j))
            del targets, waiting, buffers, extra

    def _changed(self, perturbed: Sequence[Perturbed]) -> list[Tensor]:
        result: list[Tensor] = []
        for k, stage in enumerate(perturbed):
            parameters = [p for p in stage.module.parameters() if p.requires_grad] if self.local else []
            changing = [*stage.module.buffers(), *parameters]
            result += [torch.empty_like(t) for _ in range(len(perturbed) - 1 - k) for t in changing]
        return result

    def _stored(self, perturbed: Sequence[Perturbed], x: Any, pair: Callable[[int], list[Tensor]]) -> list[list[Any]]:
        buffers = []
        for k, stage in enumerate(perturbed):
            for _ in range(len(perturbed) - 1 - k):
                inputs = _like(x) if k == 0 else pair(k - 1)[0]
                buffers.append([inputs, *(torch.empty_like(p) for p in stage.module.parameters() if p.requires_grad)])
        return buffers


def _like(values: Any) -> Any:
    return tree_map(lambda v: torch.empty_like(v) if isinstance(v, Tensor) else v, values)


class ModelWithHeads(nn.Module):
    """A model and the local heads of its modules; its forward pass is the model's."""

    def __init__(self, model: nn.Module, heads: nn.ModuleList):
        super().__init__()
        self.model, self.heads = model, heads

    def forward(self, x: Any) -> Any:
        """Run the model."""
        return self.model(x)


def modules_of(model: nn.Module, ends: Sequence[int]) -> list[nn.Module]:
    """Cut the model at these ends into modules that share its layers. Raises: WorkloadError."""
    if len(ends) == 1:
        return [model]
    layers = parts(model)
    return [nn.Sequential(*layers[a:b]) for a, b in pairwise([0, *ends])]


def perturbed_of(
    modules: Sequence[nn.Module],
    heads: nn.ModuleList,
    perturb: Perturb,
    alpha: Alpha,
    *,
    local: bool,
    side_by_side: bool = False,
) -> tuple[list[Perturbed], list[Perturbed]]:
    """Make the perturbed modules and heads; the scale of a head is 1, like a classifier's.

    A module that learns in the tick of its forward pass stores its direction. The others draw it again to save memory,
    unless they run in threads, for speed.
    """
    last = len(modules) - 1
    keeps = [1 if local or k == last else (last - k + 1) * side_by_side for k in range(len(modules))]
    return (
        [Perturbed(m, perturb=perturb, alpha=alpha, keep=keep) for m, keep in zip(modules, keeps, strict=True)],
        [Perturbed(head, perturb=perturb, alpha=Alpha(head, alpha.batch_size), keep=1) for head in heads],
    )
