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
from wattune.algorithms.model_parts import parts
from wattune.algorithms.placement import autocast
from wattune.algorithms.spec import SpecOption, whole
from wattune.errors import InputError

Segments = int | Literal["auto"]
"""Number of segments; "auto" is the one that takes the least memory, see ``least_memory``."""


def _parse(text: str) -> Segments:
    return "auto" if text == "auto" else int(whole(2).parse(text))


SEGMENTS = SpecOption(_parse, "2 or more, or auto")
"""The option of an algorithm's spec."""


class PartBytes(NamedTuple):
    """Memory of one part: its input, what its forward pass stores, and the most beside what earlier parts store."""

    input: float
    stored: float
    peak: float


def least_memory(trainable: Trainable, module: nn.Module, optimizer: torch.optim.Optimizer, samples: int) -> int:
    """The number of segments whose pass over ``samples`` samples takes the least memory; the fewest of equal ones.

    Each part is counted once, and the peak of any number of segments follows. Raises: WorkloadError if the model has no
    parts, or its step fails.
    """
    count = len(parts(module))
    each = step_counting.on_copy(trainable, module, optimizer, samples, _part_bytes)
    return min(range(2, max(2, count) + 1), key=lambda segments: _peak_bytes(each, _ends(count, segments)))


def _part_bytes(stage: StagedCopy, trainable: Trainable, samples: int) -> list[PartBytes]:
    """Count the memory of each part, and at the end of the loss."""
    counter, results = Counter("forward"), []
    weights = {p.untyped_storage()._cdata for p in stage.module.parameters()}
    before: dict[int, int] = {}  # storage that the part before has stored
    stored: dict[int, int] = {}
    learns = False  # the batch itself has no gradient

    def store(value: Tensor) -> Tensor:
        if (key := value.untyped_storage()._cdata) not in weights | before.keys():
            stored[key] = value.untyped_storage().nbytes()
        return value

    with stage.running(), stage.forward(train=True), fused_memory(counter), counter:
        x, y = stage.batch(trainable, samples)
        counter.hold(x)
        layers: list[Callable[[Any], Any]] = [*parts(stage.module), partial(differentiable_loss, trainable, target=y)]
        for layer in layers:
            alive_bytes, begin = counter.alive_bytes, len(counter.memory_bytes)
            inputs = {v.untyped_storage()._cdata: v.untyped_storage().nbytes() for v in tensors(x)}
            alive_bytes -= sum(size for key, size in inputs.items() if key not in before)
            leaf, stored = tree_map(_leaf, x) if learns else x, {}
            with autocast("cpu", trainable.data_type), saved_tensors_hooks(store, lambda value: value):
                output = layer(own(layer, leaf) if isinstance(layer, nn.Module) else leaf)
            trained = layer.parameters() if isinstance(layer, nn.Module) else ()
            wanted = [value for value in (*trained, *tensors(leaf)) if value.requires_grad]
            if wanted and output.requires_grad:
                torch.autograd.grad(output, wanted, torch.ones_like(output), allow_unused=True)
            peak = max(counter.memory_bytes[begin:], default=alive_bytes) - alive_bytes
            results.append(PartBytes(sum(inputs.values()), sum(stored.values()), peak))
            x, learns = output.detach(), output.requires_grad
            kept = {v.untyped_storage()._cdata for v in tensors(x)} & before.keys()  # a part may return its input
            before = stored | {key: before[key] for key in kept}
            del output, leaf, wanted
    return results


def _leaf(value: Any) -> Any:
    differs = isinstance(value, Tensor) and value.is_floating_point()
    return value.detach().requires_grad_() if differs else value


def _peak_bytes(each: Sequence[PartBytes], ends: Sequence[int]) -> float:
    """Most memory at once: the inputs of segments up to the present one, and what its parts have stored."""
    peak = inputs = 0.0
    for start, end in pairwise([0, *ends[:-1], len(each)]):  # the loss belongs to the last segment
        inputs += each[start].input if start else 0.0
        stored = inputs
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
    return [nn.Sequential(*layers[start:end]) for start, end in pairwise([0, *_ends(len(layers), segments)])]


def _ends(count: int, segments: int) -> list[int]:
    each, more = divmod(count, segments)
    return [each * (i + 1) + min(more, i + 1) for i in range(segments)]


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
