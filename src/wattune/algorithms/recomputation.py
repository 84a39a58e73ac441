"""Activation checkpointing: a forward pass that stores activations between segments only, and recomputes the others.

Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174, section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import checkpoint

from wattune.algorithms.base import Batch, Trainable, differentiable_loss
from wattune.algorithms.counting import step_counting
from wattune.algorithms.counting.aten import tensors
from wattune.algorithms.counting.counter import Counter, StagedCopy
from wattune.algorithms.counting.fused import fused_memory
from wattune.algorithms.forward.masks import own
from wattune.algorithms.model_parts import even_ends, parts
from wattune.algorithms.placement import autocast
from wattune.algorithms.spec import SpecOption, whole
from wattune.errors import InputError

Segments = int | Literal["auto"]
"""Number of segments; "auto" takes the least memory by a forecast, see ``least_memory``."""


def _parse(text: str) -> Segments:
    return "auto" if text == "auto" else int(whole(2).parse(text))


SEGMENTS = SpecOption(_parse, "2 or more, or auto")
"""The option of an algorithm's spec."""


class PartBytes(NamedTuple):
    """Memory of one part: its input, what its forward pass stores, and the most beside what earlier parts store.

    ``stored_input``: of the input, what this part is the first to store.
    """

    input: float
    stored_input: float
    stored: float
    peak: float


def least_memory(trainable: Trainable, module: nn.Module, optimizer: torch.optim.Optimizer, samples: int) -> int:
    """Foresee the number of segments whose pass over ``samples`` samples takes the least memory; the fewest of equals.

    Each part is counted once, and the peak of any number of segments follows, but for the gradients of the weights so
    far. Raises: WorkloadError if the model has no parts, or its step fails.
    """
    count = len(parts(module))
    each = step_counting.on_copy(trainable, module, optimizer, samples, _part_bytes)
    return min(range(2, max(2, count) + 1), key=lambda segments: _peak_bytes(each, even_ends(count, segments)))


def _part_bytes(stage: StagedCopy, trainable: Trainable, samples: int) -> list[PartBytes]:
    """Count the memory of each part, and at the end of the loss."""
    counter, results = Counter("forward"), []
    weights = {p.untyped_storage()._cdata for p in stage.module.parameters()}
    before: set[int]  # storage of the present input that parts before have stored
    stored: dict[int, int] = {}

    def store(value: Tensor) -> Tensor:
        if (key := value.untyped_storage()._cdata) not in weights | before:
            stored[key] = value.untyped_storage().nbytes()
        return value

    with stage.running(), stage.forward(train=True), fused_memory(counter), counter:
        x, y = stage.batch(trainable, samples)
        counter.hold(x)
        before = set(_storages(x))  # the batch stays alive beside all parts
        layers: list[Callable[[Any], Any]] = [*parts(stage.module), partial(differentiable_loss, trainable, target=y)]
        for layer in layers:
            inputs, stored, begin = _storages(x), {}, len(counter.memory_bytes)
            alive_bytes = counter.alive_bytes - sum(size for key, size in inputs.items() if key not in before)
            with autocast("cpu", trainable.data_type), saved_tensors_hooks(store, lambda value: value):
                output = layer(own(layer, x) if isinstance(layer, nn.Module) else x)
            end, outputs = len(counter.memory_bytes), _storages(output)
            learning = [value for value in tensors(output) if value.requires_grad]
            torch.autograd.backward(learning, [torch.ones_like(value) for value in learning])
            # In a pass over all parts, input and output are gone by now unless they are stored.
            gone = sum(size for key, size in (inputs | outputs).items() if key not in before | stored.keys())
            peaks = [*counter.memory_bytes[begin:end], *(alive - gone for alive in counter.memory_bytes[end:])]
            peak = max(peaks, default=alive_bytes) - alive_bytes
            stored_input = sum(size for key, size in inputs.items() if key in stored)
            results.append(PartBytes(sum(inputs.values()), stored_input, sum(stored.values()), peak))
            # Only storage that is still alive: the address of another may be given to a new one.
            before = outputs.keys() & (before | stored.keys())
            x = tree_map(_input, output)
            del output, learning
    return results


def _storages(values: Any) -> dict[int, int]:
    """Bytes of each storage."""
    return {v.untyped_storage()._cdata: v.untyped_storage().nbytes() for v in tensors(values)}


def _input(value: Any) -> Any:
    """Make a part's output the next part's input."""
    if not isinstance(value, Tensor) or not value.requires_grad:
        return value
    return _Begin.apply(value.new_empty(0, requires_grad=True), value.detach())  # type: ignore[no-untyped-call]


class _Begin(torch.autograd.Function):
    """Begin a graph at a tensor that a part may change in place, as it may not change a leaf."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, value: Tensor) -> Tensor:
        """Return the value itself."""
        ctx.mark_dirty(value)
        return value

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[None, None]:
        """End the backward pass."""
        return None, None


def _peak_bytes(each: Sequence[PartBytes], ends: Sequence[int]) -> float:
    """Most memory at once: the inputs of segments up to the present one, and what its parts have stored."""
    peak = inputs = 0.0
    for start, end in pairwise([0, *ends[:-1], len(each)]):  # the loss belongs to the last segment
        inputs += each[start].input if start else 0.0
        stored = inputs - each[start].stored_input  # no second copy
        for part in each[start:end]:
            peak = max(peak, stored + part.peak)
            stored += part.stored
    return peak


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
    return [nn.Sequential(*layers[start:end]) for start, end in pairwise([0, *even_ends(len(layers), segments)])]


def forward(segments: Sequence[nn.Sequential], x: Any, *, keep_random: bool = True) -> Tensor:
    """Run the segments one after another, storing only the input of each but the last, whose activations are needed at
    once. The backward pass recomputes the others, with the same random numbers if ``keep_random``.

    A recomputation leaves no trace in the model: running statistics are updated once.
    """
    for segment in segments[:-1]:
        x = checkpoint(_twice(segment), x, use_reentrant=False, preserve_rng_state=keep_random)
    output: Tensor = segments[-1](x)
    return output


def _twice(segment: nn.Sequential) -> Callable[[Any], Any]:
    """Make a pass of the segment that finds its buffers from before the first time when it runs again, as copies."""
    before: dict[str, Tensor] | None = None
    first = next(segment.children())  # may work in place, on an input that is stored

    def run(x: Any) -> Any:
        nonlocal before
        if before is None:
            before = {name: buffer.clone() for name, buffer in segment.named_buffers()}
            return segment(own(first, x))
        # Other tensors rather than other values: a backward pass may need the present ones unchanged.
        return functional_call(segment, before, (own(first, x),))

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
