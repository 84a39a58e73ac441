"""Forward-mode automatic differentiation, which PyTorch has once for a whole process: who may use it, and with what.

The level at which tangents live is global: a second thread that opens or leaves one takes away the tangents of the
first. So one thread at a time owns forward mode, opens the level and leaves it; its workers only make and unpack dual
tensors in between. Without ``no_grad`` a tape of the dual computation would be recorded, and the memory that forward
mode saves be lost. Fused attention has no forward derivative, its written-out form does.

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
    """This thread alone uses forward mode in here; it may enter again.

    Raises: InputError where another thread of the process is in.
    """
    global _owner, _held
    with _GUARD:
        if _owner not in (None, threading.get_ident()):
            raise InputError(
                "a second training by forward gradients in this process",
                value=threading.current_thread().name,
                allowed="one at a time: PyTorch has forward-mode differentiation once for all threads",
                hint="start it in a process of its own",
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
    """Dual tensors live in here, and their tangents end with it: whoever needs one later unpacks it before.

    Raises: InputError where another thread of the process is in.
    """
    with owned():
        _load()
        with sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level(), torch.no_grad():
            yield


def dual(value: Tensor, tangent: Tensor | None) -> Tensor:
    """A tensor with a tangent, inside the level; without a tangent the tensor itself."""
    if tangent is None:
        return value
    made: Tensor = forward_ad.make_dual(value, tangent)  # type: ignore[no-untyped-call]
    return made


def unpacked(value: Tensor) -> tuple[Tensor, Tensor | None]:
    """The tensor and its tangent (None where it carries none), as plain tensors that outlive the level."""
    primal, tangent = forward_ad.unpack_dual(value)  # type: ignore[no-untyped-call]
    return primal, tangent


@functools.cache
def _load() -> None:
    # The first dual tensor of a process makes PyTorch compile its decompositions, which it deprecates itself.
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)
        dual(torch.zeros(1), torch.zeros(1))
