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

from wattune.errors import InputError, WorkloadError

_OWNED = threading.Lock()


@contextmanager
def level() -> Iterator[None]:
    """Open the level of dual tensors. Tangents end with it: unpack them before if they are needed later.

    Raises: InputError if the level is open already, since another thread of the process trains.
    """
    if not _OWNED.acquire(blocking=False):
        raise InputError(
            "a second training run with forward gradients in this process",
            value=threading.current_thread().name,
            allowed="one at a time: PyTorch's forward-mode differentiation is global to the process",
            hint="start it in a separate process",
        )
    try:
        _load()
        with sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level(), torch.no_grad():
            yield
    finally:
        _OWNED.release()


def dual(value: Tensor, tangent: Tensor | None) -> Tensor:
    """Make a dual tensor inside the level; without a tangent, return the tensor itself."""
    if tangent is None:
        return value
    return forward_ad.make_dual(value, tangent)  # type: ignore[no-untyped-call, no-any-return]


def unpacked(value: Tensor) -> tuple[Tensor, Tensor | None]:
    """The tensor and its tangent (None without one), as plain tensors that outlive the level."""
    return forward_ad.unpack_dual(value)  # type: ignore[no-untyped-call, no-any-return]


@functools.cache
def _load() -> None:
    # The first dual tensor of a process makes PyTorch compile its decompositions, by a function that it deprecated, and
    # that it warns of in another category on Python 3.14.
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        dual(torch.zeros(1), torch.zeros(1))


@contextmanager
def derivative_errors() -> Iterator[None]:
    """Name an operation that has no forward derivative. Raises: WorkloadError."""
    try:
        yield
    except NotImplementedError as error:
        _, found, said = str(error).partition("Trying to use forward AD with ")
        if not found:
            raise
        raise no_derivative(said.partition(" ")[0]) from error


def no_derivative(name: str) -> WorkloadError:
    """The error for an operation or a layer through which no forward derivative passes."""
    return WorkloadError(
        "an operation of the model or its loss without a forward derivative",
        value=name,
        hint="train with backprop, or with perturb=differences",
    )
