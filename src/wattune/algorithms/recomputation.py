"""Activation checkpointing: a forward pass that stores activations between segments only, and recomputes the others.

Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from wattune.algorithms.base import Batch, Trainable
from wattune.algorithms.counting import step_counting
from wattune.algorithms.model_parts import parts
from wattune.algorithms.spec import SpecOption, whole
from wattune.errors import InputError

Segments = int | Literal["auto"]
"""Number of segments; "auto" is the one that takes the least memory, see ``least_memory``."""


def _parse(text: str) -> Segments:
    return "auto" if text == "auto" else int(whole(2).parse(text))


SEGMENTS = SpecOption(_parse, "2 or more, or auto")
"""The option of an algorithm's spec."""


ALL_COUNTED = 16
"""Numbers of segments up to here are all counted."""


def least_memory(trainable: Trainable, module: nn.Module, optimizer: torch.optim.Optimizer, samples: int) -> int:
    """The number of segments whose pass over ``samples`` samples takes the least memory, by counting; the fewest of
    equal ones.

    All numbers up to ``ALL_COUNTED`` are compared. Of larger ones, those with equally long segments hardly differ, and
    only the least of them is counted. Raises: WorkloadError if the model has no parts, or its step fails.
    """
    count = len(parts(module))
    few = range(2, min(count, ALL_COUNTED) + 1)
    candidates: list[int] = sorted({*few, *(max(2, math.ceil(count / longest)) for longest in range(1, count + 1))})
    passes = [CheckpointedPass(segments) for segments in candidates]
    peaks: list[float] = step_counting.peak_bytes(trainable, module, optimizer, samples, passes)
    return candidates[peaks.index(min(peaks))]


def cut(model: nn.Module, segments: int) -> list[nn.Sequential]:
    """Divide the model's parts into segments of equal numbers of parts; the first ones may have one more.

    Raises: WorkloadError if the model has no parts, InputError if there are fewer parts than segments.
    """
    layers = parts(model)
    if segments > len(layers):
        raise InputError(
            "checkpoint of the algorithm backprop",
            value=segments,
            allowed=f"2 to {len(layers)}, the number of the model's parts",
        )
    each, more = divmod(len(layers), segments)
    ends = [each * (i + 1) + min(more, i + 1) for i in range(segments)]
    return [nn.Sequential(*layers[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def forward(segments: Sequence[nn.Module], x: Any, *, keep_random: bool = True) -> Tensor:
    """Run the segments one after another, storing only the input of each but the last, whose activations are needed at
    once. The backward pass recomputes the others, with the same random numbers if ``keep_random``.

    A recomputation leaves no trace in the model: running statistics are updated once.
    """
    for segment in segments[:-1]:
        x = checkpoint(_twice(segment), x, use_reentrant=False, preserve_rng_state=keep_random)
    output: Tensor = segments[-1](x)
    return output


def _twice(segment: nn.Module) -> Callable[[Any], Any]:
    """Make a pass of the segment that finds its buffers from before the first time when it runs again, as copies."""
    before: dict[str, Tensor] | None = None

    def run(x: Any) -> Any:
        nonlocal before
        if before is None:
            before = {name: buffer.clone() for name, buffer in segment.named_buffers()}
            return segment(x)
        # Other tensors rather than other values: a backward pass may need the present ones unchanged.
        return functional_call(segment, before, (x,))

    return run


@dataclass(frozen=True)
class CheckpointedPass:
    """The pass of backpropagation with checkpointed segments, as a ``TrainingPass`` to be counted."""

    segments: int

    def __call__(self, module: nn.Module, trainable: Trainable, batch: Batch, phase: Callable[[str], None]) -> None:
        """Run the pass; recomputations are part of the backward pass."""
        # A copy without values has no random numbers to keep, and with values any others count the same.
        cells = partial(forward, cut(module, self.segments), keep_random=False)
        step_counting.backward_pass(cells, trainable, batch, phase)
