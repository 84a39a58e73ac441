"""Where a sequence of parts is cut into modules: so that the dearest module is as cheap as can be.

A pipeline runs at the pace of its slowest module. What a part costs in a step is either
counted (operations, bytes and launches of the parts, turned to seconds at the nominal rates of a small processor) or
measured here and now. Counted costs are the same in every process, so that a seed decides a training; measured ones
fit the machine better, and change a little from run to run.
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

from wattune.algorithms import forward_ad
from wattune.algorithms.base import Trainable
from wattune.algorithms.counter import Counter
from wattune.algorithms.perturbed import Perturbed
from wattune.algorithms.placement import shortage_said
from wattune.algorithms.stepping import untouched
from wattune.algorithms.tangents import Key
from wattune.errors import InputError, WorkloadError

Cost = Callable[[Callable[[], object]], float]
"""Seconds that a call takes."""

FLOPS_PER_S, BYTES_PER_S, LAUNCH_S = 30e9, 10e9, 5e-6
"""Nominal rates of one core of a small processor; only how the three stand to one another matters for the cut."""

ROUNDS = 5
"""How often a part is measured; the fastest counts, since whatever disturbs a measurement makes it longer."""


def cut(costs: Sequence[float], modules: int) -> list[int]:
    """Ends of ``modules`` contiguous groups of parts, none empty, whose largest sum of costs is the least possible.

    Among cuts that are equally good the earliest ends win. Raises: InputError for more modules than parts.
    """
    count = len(costs)
    if not 1 <= modules <= count:
        raise InputError(
            "modules that a model is cut into", value=modules, allowed=f"1 to {count}, the number of its parts"
        )
    before = [0.0, *accumulate(costs)]  # before[i]: cost of the first i parts
    # best[i]: the least possible dearest module of the first i parts in as many modules as the round says.
    best = before[:]
    ends_of = [[[i] for i in range(count + 1)]]
    for number in range(2, modules + 1):
        previous, best, ends = best, [float("inf")] * (count + 1), [[0]] * (count + 1)
        for i in range(number, count + 1):
            for j in range(number - 1, i):
                dearest = max(previous[j], before[i] - before[j])
                if dearest < best[i]:
                    best[i], ends[i] = dearest, [*ends_of[-1][j], i]
        ends_of.append(ends)
    return ends_of[-1][count]


class PartCost(NamedTuple):
    """What a part takes in a forward pass with tangents, and the shape of what it gives for one sample."""

    seconds: float
    shape: tuple[int, ...]


def costs(
    trainable: Trainable, found: Sequence[Perturbed], samples: int, cost: Cost, *, step: int = 0
) -> list[PartCost]:
    """What each part of a model costs in a training step over ``samples`` samples: its forward pass with tangents, and
    the gradient that follows from a derivative. ``step`` is that at which it is as strongly perturbed as it will be.

    The parts stay as they are. Raises: WorkloadError where a part does not run with tangents, InputError as
    ``Perturbed`` does, OutOfDeviceMemory.
    """
    modules = [part.module for part in found]
    device = next((p.device for module in modules for p in module.parameters()), torch.device("cpu"))
    x: Any = trainable.example(samples)[0]
    passed: tuple[Any, Tensor | None] = tree_map(lambda v: v.to(device) if isinstance(v, Tensor) else v, x), None
    result = []
    with untouched(modules), forward_ad.level(), shortage_said("a forward pass with tangents"):
        for place, part in enumerate(found):
            learnt = partial(_learnt, part, *passed, Key(0, step, place))
            try:
                passed = learnt()  # whatever is done once only is done now
                result.append(PartCost(cost(learnt), tuple(passed[0].shape[1:])))
            except InputError:
                raise
            except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
                raise WorkloadError(
                    f"part {place + 1} of the model does not run with tangents",
                    value=f"{type(part.module).__name__}: {error}",
                ) from error
    return result


def counted(call: Callable[[], object]) -> float:
    """Seconds of a call by its operations at the nominal rates."""
    with Counter("forward") as counter:
        call()
    return math.fsum(
        max(flops / FLOPS_PER_S, moved / BYTES_PER_S) + launches * LAUNCH_S
        for flops, moved, launches in counter.tally.values()
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


def _learnt(part: Perturbed, x: Any, tangent: Tensor | None, key: Key) -> tuple[Tensor, Tensor | None]:
    passed = part.dual(x, tangent, key)
    derivative = torch.zeros(passed[0].shape[:1] if part.perturb == "activities" else (), device=passed[0].device)
    part.add_gradient(x, derivative, key)
    for parameter in part.module.parameters():
        parameter.grad = None
    return passed
