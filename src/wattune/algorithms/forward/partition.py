"""The partition of a sequence of parts into modules, with the least possible cost of the most expensive module.

A pipeline runs at the pace of its slowest module. The cost of a part in a step is counted: its operations, bytes and
launches, converted to seconds at the nominal rates of a small processor. It is the same in every process, so that a
seed determines a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import torch

from wattune.algorithms import stepwise
from wattune.algorithms.base import Trainable
from wattune.algorithms.counting.counter import Counter
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.blocks import PerturbedBlocks
from wattune.algorithms.forward.estimate import DualValue
from wattune.algorithms.forward.masks import RandomKey
from wattune.algorithms.forward.perturbed import Perturbed
from wattune.algorithms.placement import memory_errors
from wattune.algorithms.stepwise import preserved
from wattune.errors import InputError

FLOPS_PER_S, BYTES_PER_S, LAUNCH_S = 30e9, 10e9, 5e-6
"""Nominal rates of one core of a small processor; only their ratios matter for the cut."""


def cut(costs: Sequence[float], modules: int) -> list[int]:
    """Ends of ``modules`` contiguous groups of parts, none empty, with the least possible largest sum of costs.

    Among equally good cuts the one with the earliest ends wins. Raises: InputError for more modules than parts.
    """
    if not 1 <= modules <= len(costs):
        allowed = f"1 to {len(costs)}, the number of the model's parts"
        raise InputError("number of modules", value=modules, allowed=allowed)
    before = [0.0, *accumulate(costs)]  # before[i]: cost of the first i parts

    @cache
    def best(count: int, groups: int) -> tuple[float, list[int]]:
        """The cost of the most expensive of ``groups`` groups of the first ``count`` parts, and their ends."""
        if groups == 1:
            return before[count], [count]
        starts = range(groups - 1, count)  # of the last group
        highest, start = min((max(best(i, groups - 1)[0], before[count] - before[i]), i) for i in starts)
        return highest, [*best(start, groups - 1)[1], count]

    return best(len(costs), modules)[1]


def costs(
    trainable: Trainable, parts: Sequence[Perturbed | PerturbedBlocks], samples: int, *, step: int = 0
) -> list[float]:
    """The seconds of each part of a model in a training step over ``samples`` samples: its forward pass with tangents,
    and its gradient from a derivative. ``step``: a step at which every layer that ever learns is learning.

    The parts do not change. Raises: WorkloadError if a part does not run with tangents, InputError as ``Perturbed``
    does, OutOfDeviceMemory.
    """
    modules = [part.module for part in parts]
    device = next((p.device for module in modules for p in module.parameters()), torch.device("cpu"))
    value: DualValue = stepwise.part(trainable.example(samples), 0, samples, device)[0], None
    result = []
    with preserved(modules), forward_ad.step_errors(), forward_ad.level(), memory_errors("a pass with tangents"):
        for place, part in enumerate(parts):
            key = RandomKey(0, step, place)
            _training_step(part, *value, key)  # one-time initialisation happens here
            with Counter("forward") as counter:
                value = _training_step(part, *value, key)
            result.append(
                math.fsum(
                    max(flops / FLOPS_PER_S, moved_bytes / BYTES_PER_S) + launches * LAUNCH_S
                    for flops, moved_bytes, launches in counter.tally.values()
                )
            )
    return result


def _training_step(part: Perturbed | PerturbedBlocks, x: Any, tangents: Any, key: RandomKey) -> DualValue:
    own: Any = list(tangents) if isinstance(tangents, list) else tangents
    output: DualValue = part.dual(x, own, key)
    shape = (part.directions, len(output[0])) if isinstance(part, PerturbedBlocks) else ()
    part.add_gradient(x, output[0].new_zeros(shape), key)
    for parameter in part.module.parameters():
        parameter.grad = None
    return output
