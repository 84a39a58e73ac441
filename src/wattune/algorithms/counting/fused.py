"""Attention and LSTM as libraries fuse them: operations are counted one by one, memory as a fused kernel's.

Attention stores its inputs (B, H, L, E), its output and one number for each row (B, H, L), and no matrix (L, S): the
fused kernels of CPUs and of CUDA alike. An LSTM stores its gates, cells, hidden states and outputs, (T, B, 4 + 1 + 1 +
1) numbers for each unit of a layer and direction, and its backward pass takes as many again for one layer: those are
oneDNN's, for CPUs, and cuDNN reserves nearly the same. A GRU and other recurrent layers are fused on CUDA alone, and
stay as they are spelled out.

Source: Dao et al. 2022, arXiv 2205.14135 (attention); oneDNN developer guide, RNN (workspace).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from wattune.algorithms.counting.counter import Counter

LSTM_NUMBERS = 4 + 1 + 1 + 1
"""Numbers stored for each unit and step of a layer: gates, cell, hidden state, output."""


_FUNCTIONS: Any = F
_RECURRENT: Any = torch._VF
_ATTENTION, _LSTM = _FUNCTIONS.scaled_dot_product_attention, _RECURRENT.lstm

_COUNTER: ContextVar[Counter | None] = ContextVar("counter", default=None)
"""Counter of this thread; other threads call PyTorch as ever."""


@contextmanager
def fused_memory(counter: Counter) -> Iterator[None]:
    """Take the memory of attention and LSTM for a fused kernel's, within and in this thread."""
    before = _COUNTER.set(counter)
    _FUNCTIONS.scaled_dot_product_attention, _RECURRENT.lstm = _attention, _lstm
    try:
        yield
    finally:
        _FUNCTIONS.scaled_dot_product_attention, _RECURRENT.lstm = _ATTENTION, _LSTM
        _COUNTER.reset(before)


def _counter() -> Counter | None:
    # Where a forward derivative is computed nothing is fused: only the spelled-out operations have one.
    return _COUNTER.get() if forward_ad._current_level < 0 else None


def _attention(query: Tensor, key: Tensor, value: Tensor, *others: Any, **options: Any) -> Any:
    if (counter := _counter()) is None:
        return _ATTENTION(query, key, value, *others, **options)

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        return (_ATTENTION(*inputs, *others, **options),)

    return _Fused.apply(counter, call, query.shape[:-1], (0,), query, key, value)[0]  # type: ignore[no-untyped-call]


def _lstm(x: Tensor, states: Any, weights: Any, *others: Any) -> Any:
    counter = _counter()
    if counter is None or isinstance(states, Tensor):  # the batch sizes of a packed sequence
        return _LSTM(x, states, weights, *others)
    _, layers, _, _, is_bidirectional, _ = others
    one_layer = (LSTM_NUMBERS, x.shape[0] * x.shape[1], (1 + is_bidirectional) * states[1].shape[-1])

    def call(*inputs: Tensor) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = _LSTM(inputs[0], inputs[1:3], inputs[3:], *others)
        return outputs

    return _Fused.apply(counter, call, (layers, *one_layer), one_layer, x, *states, *weights)  # type: ignore[no-untyped-call]


class _Fused(torch.autograd.Function):
    """A call whose intermediate results are counted, and take no memory but ``stored`` and ``workspace`` numbers."""

    @staticmethod
    def forward(
        ctx: Any,
        counter: Counter,
        call: Callable[..., tuple[Tensor, ...]],
        stored: Sequence[int],
        workspace: Sequence[int],
        *inputs: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run the call; keep its inputs, its outputs and ``stored`` numbers for the backward pass."""
        with counter.switched("unheld"):
            outputs = call(*inputs)
        counter.hold(outputs)
        ctx.counter, ctx.call, ctx.workspace = counter, call, workspace
        ctx.save_for_backward(*inputs, *outputs, inputs[0].new_empty(stored))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """Count the operations of the call's backward pass."""
        counter, wanted = ctx.counter, ctx.needs_input_grad[4:]
        saved = ctx.saved_tensors  # without a reference, those of a checkpointed call are freed at once
        inputs = [x.detach().requires_grad_(need) for x, need in zip(saved, wanted, strict=False)]
        workspace = inputs[0].new_empty(ctx.workspace)
        with torch.enable_grad(), counter.switched("paused"):
            outputs = ctx.call(*inputs)
        with counter.switched("unheld"):
            leaves = [x for x in inputs if x.requires_grad]
            found = iter(torch.autograd.grad(outputs, leaves, gradients, allow_unused=True))
        results = [next(found) if need else None for need in wanted]
        counter.hold(results)
        del saved, workspace
        return (None, None, None, None, *results)
