"""Forward-mode automatic differentiation, owned by one thread at a time since PyTorch's is global to the process.

The level of tangents is global: a second thread that opens or leaves one invalidates the tangents of the first. So one
thread at a time owns forward mode, opens the level and leaves it; its workers only make and unpack dual tensors in
between. Without ``no_grad`` the tape of the dual computation would take the memory that forward mode saves. Fused
attention has no forward derivative; its unfused form does.

Source: comments in pytorch torch/csrc/autograd/forward_grad.cpp and torch/autograd/forward_ad.py (levels); pytorch
issue 117629 (scaled_dot_product_attention).
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from wattune.errors import InputError

_GUARD = threading.Lock()
_owner: int | None = None
_held = 0


@contextmanager
def owned() -> Iterator[None]:
    """Reserve forward mode for this thread; reentrant.

    Raises: InputError if another thread of the process has reserved it.
    """
    global _owner, _held
    with _GUARD:
        if _owner not in (None, threading.get_ident()):
            raise InputError(
                "a second training run with forward gradients in this process",
                value=threading.current_thread().name,
                allowed="one at a time: PyTorch's forward-mode differentiation is global to the process",
                hint="start it in a separate process",
            )
        _owner, _held = threading.get_ident(), _held + 1
    try:
        yield
    finally:
        with _GUARD:
            _held -= 1
            if not _held:
                _owner = None


@contextmanager
def level() -> Iterator[None]:
    """Open the level of dual tensors. Tangents end with it: unpack them before if they are needed later.

    Raises: InputError if another thread of the process uses forward mode.
    """
    with owned():
        _load()
        with sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level(), torch.no_grad():
            yield


def dual(value: Tensor, tangent: Tensor | None) -> Tensor:
    """Make a dual tensor inside the level; without a tangent, return the tensor itself."""
    if tangent is None:
        return value
    pair: Tensor = forward_ad.make_dual(value, tangent)  # type: ignore[no-untyped-call]
    return pair


def unpacked(value: Tensor) -> tuple[Tensor, Tensor | None]:
    """The tensor and its tangent (None without one), as plain tensors that outlive the level."""
    primal, tangent = forward_ad.unpack_dual(value)  # type: ignore[no-untyped-call]
    return primal, tangent


@functools.cache
def _load() -> None:
    # The first dual tensor of a process makes PyTorch compile its decompositions, by a function that it deprecated.
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)
        dual(torch.zeros(1), torch.zeros(1))
