"""The partition of a sequence of parts into modules, with the least possible cost of the most expensive module.

A pipeline runs at the pace of its slowest module. The cost of a part in a step is either counted (its operations, bytes
and launches, converted to seconds at the nominal rates of a small processor) or measured on the spot. Counted costs are
the same in every process, so that a seed determines a run; measured ones fit the machine better, and vary a little.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from wattune.algorithms.base import Trainable
from wattune.algorithms.counting.counter import Counter
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.blocks import PerturbedBlocks
from wattune.algorithms.forward.masks import RandomKey
from wattune.algorithms.forward.stage import PerturbedModule
from wattune.algorithms.placement import memory_errors
from wattune.algorithms.stepwise import preserved
from wattune.errors import InputError, WorkloadError

Cost = Callable[[Callable[[], object]], float]
"""Function from a call to its seconds."""

FLOPS_PER_S, BYTES_PER_S, LAUNCH_S = 30e9, 10e9, 5e-6
"""Nominal rates of one core of a small processor; only their ratios matter for the cut."""

ROUNDS = 5
"""Measurements of a part; the fastest counts, since disturbances only make a measurement longer."""


def cut(costs: Sequence[float], modules: int) -> list[int]:
    """Ends of ``modules`` contiguous groups of parts, none empty, with the least possible largest sum of costs.

    Among equally good cuts the one with the earliest ends wins. Raises: InputError for more modules than parts.
    """
    count = len(costs)
    if not 1 <= modules <= count:
        raise InputError("number of modules", value=modules, allowed=f"1 to {count}, the number of the model's parts")
    before = [0.0, *accumulate(costs)]  # before[i]: cost of the first i parts
    # best[i]: the least possible cost of the most expensive module if the first i parts are in `number` modules.
    best = before[:]
    ends_of = [[[i] for i in range(count + 1)]]
    for number in range(2, modules + 1):
        previous, best, ends = best, [float("inf")] * (count + 1), [[0]] * (count + 1)
        for i in range(number, count + 1):
            for j in range(number - 1, i):
                highest = max(previous[j], before[i] - before[j])
                if highest < best[i]:
                    best[i], ends[i] = highest, [*ends_of[-1][j], i]
        ends_of.append(ends)
    return ends_of[-1][count]


class PartCost(NamedTuple):
    """Seconds of a part's forward pass with tangents, and the shape of its output for one sample."""

    seconds: float
    shape: tuple[int, ...]


def costs(
    trainable: Trainable, parts: Sequence[PerturbedModule], samples: int, cost: Cost, *, step: int = 0
) -> list[PartCost]:
    """The cost of each part of a model in a training step over ``samples`` samples: its forward pass with tangents, and
    its gradient from a derivative. ``step``: a step at which every layer that ever learns is learning.

    The parts do not change. Raises: WorkloadError if a part does not run with tangents, InputError as ``Perturbed``
    does, OutOfDeviceMemory.
    """
    modules = [part.module for part in parts]
    device = next((p.device for module in modules for p in module.parameters()), torch.device("cpu"))
    x: Any = trainable.example(samples)[0]
    dual_input: tuple[Any, Tensor | None] = tree_map(lambda v: v.to(device) if isinstance(v, Tensor) else v, x), None
    result = []
    with preserved(modules), forward_ad.level(), memory_errors("a forward pass with tangents"):
        for place, part in enumerate(parts):
            training_step = partial(_training_step, part, *dual_input, RandomKey(0, step, place))
            try:
                dual_input = training_step()  # one-time initialisation happens here
                result.append(PartCost(cost(training_step), tuple(dual_input[0].shape[1:])))
            except InputError:
                raise
            except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
                raise WorkloadError(
                    f"part {place + 1} of the model does not run with tangents",
                    value=f"{type(part.module).__name__}: {error}",
                ) from error
    return result


def counted(call: Callable[[], object]) -> float:
    """Seconds of a call, from its operations and the nominal rates."""
    with Counter("forward") as counter:
        call()
    return math.fsum(
        max(flops / FLOPS_PER_S, moved_bytes / BYTES_PER_S) + launches * LAUNCH_S
        for flops, moved_bytes, launches in counter.tally.values()
    )


def measured(call: Callable[[], object]) -> float:
    """Seconds of a call on this machine."""
    fastest = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        call()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
        fastest = min(fastest, time.perf_counter() - begin)
    return fastest


def _training_step(
    part: PerturbedModule, x: Any, tangent: Tensor | None, key: RandomKey
) -> tuple[Tensor, Tensor | None]:
    output = part.dual(x, tangent, key)
    samples = output[0].shape[:1]
    shape = (part.directions, *samples) if isinstance(part, PerturbedBlocks) else samples if part.keeps_input else ()
    part.add_gradient(x, torch.zeros(shape, device=output[0].device), key)
    for parameter in part.module.parameters():
        parameter.grad = None
    return output
