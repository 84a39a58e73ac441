"""Activation checkpointing: a forward pass that keeps what lies between segments, and computes the rest once more.

Source: Chen et al. 2016, Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174, section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import checkpoint

from wattune.algorithms.base import Batch, Trainable
from wattune.algorithms.parts import parts
from wattune.algorithms.precision import autocast
from wattune.algorithms.spec import Option, whole
from wattune.errors import InputError

Segments = int | Literal["auto"]
"""How many; "auto" is the square root of the number of parts, rounded up, which keeps least."""


def _parse(text: str) -> Segments:
    return "auto" if text == "auto" else int(whole(2).parse(text))


SEGMENTS = Option(_parse, "2 and up, or auto")
"""The option of an algorithm."""


def cut(model: nn.Module, segments: Segments) -> list[nn.Sequential]:
    """The model's parts in so many segments of as many parts each, or one more: first those with one more.

    Raises: WorkloadError for a model that has no parts, InputError where there are fewer parts than segments.
    """
    found = parts(model)
    count = max(2, math.ceil(math.sqrt(len(found)))) if segments == "auto" else segments
    if count > len(found):
        raise InputError(
            "checkpoint of the algorithm backprop", value=count, allowed=f"2 to {len(found)}, the parts of the model"
        )
    each, more = divmod(len(found), count)
    ends = [each * (i + 1) + min(more, i + 1) for i in range(count)]
    return [nn.Sequential(*found[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def forward(segments: Sequence[nn.Module], x: Any, *, keep_random: bool = True) -> Tensor:
    """The output of the segments one after another. Of all but the last, whose activations are needed at once, only
    the input is kept; the backward pass computes the rest again, with the same random numbers where ``keep_random``.

    A recomputation leaves no trace in the model: running statistics are updated once.
    """
    for segment in segments[:-1]:
        x = checkpoint(
            segment, x, use_reentrant=False, preserve_rng_state=keep_random, context_fn=_Twice(segment).contexts
        )
    output: Tensor = segments[-1](x)
    return output


@dataclass(frozen=True)
class CheckpointedPass:
    """The pass of backpropagation with so many segments, as a ``TrainingPass`` to be counted."""

    segments: Segments

    def __call__(self, module: nn.Module, trainable: Trainable, batch: Batch, phase: Callable[[str], None]) -> None:
        """Run it; what is computed again is part of the backward pass."""
        with autocast("cpu", trainable.data_type):
            # Without values there are no random numbers to keep, and with them other ones count the same.
            loss = trainable.loss(forward(cut(module, self.segments), batch[0], keep_random=False), batch[1])
        phase("backward")
        loss.backward()  # type: ignore[no-untyped-call]


class _Twice:
    """The contexts of a segment's two forward passes, of which the second must find and leave the buffers as they were.

    The second one works on tensors of its own: on copies from before the first, and on empty ones where they are the
    running statistics of a layer that normalises by the batch itself and does not read them.
    """

    def __init__(self, segment: nn.Module) -> None:
        self._modules = [m for m in segment.modules() if any(_buffers(m))]
        self._before: list[dict[str, Tensor | None]] = []

    def contexts(self) -> tuple[Any, Any]:
        return self._first(), self._second()

    @contextmanager
    def _first(self) -> Iterator[None]:
        self._before = [_spare(m) for m in self._modules]
        yield

    @contextmanager
    def _second(self) -> Iterator[None]:
        now = [dict(_buffers(m)) for m in self._modules]
        try:
            _put(self._modules, self._before)
            yield
        finally:
            _put(self._modules, now)


def _spare(module: nn.Module) -> dict[str, Tensor | None]:
    if isinstance(module, _NormBase) and not isinstance(module, nn.SyncBatchNorm) and module.training:
        # Without the number of batches the layer does not count them.
        return {n: None if n == "num_batches_tracked" else torch.empty_like(b) for n, b in _buffers(module)}
    return {name: buffer.clone() for name, buffer in _buffers(module)}


def _buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return module.named_buffers(recurse=False)


def _put(modules: Sequence[nn.Module], buffers: Sequence[Mapping[str, Tensor | None]]) -> None:
    # Other tensors rather than other values: a backward pass may need the ones that are there, as they are.
    for module, values in zip(modules, buffers, strict=True):
        module._buffers.update(values)
