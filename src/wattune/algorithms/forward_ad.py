"""Forward-mode automatic differentiation, which PyTorch has once for a whole process: who may use it, and with what.

The level at which tangents live is global: a second thread that opens or leaves one takes away the tangents of the
first. So one thread at a time owns forward mode, opens the level and leaves it; its workers only make and unpack dual
tensors in between. Without ``no_grad`` a tape of the dual computation would be recorded, and the memory that forward
mode saves be lost. Fused attention has no forward derivative, its written-out form does.

Source: comments in pytorch torch/csrc/autograd/forward_grad.cpp and torch/autograd/forward_ad.py (levels); pytorch
issue 117629 (scaled_dot_product_attention).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
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
    with owned(), sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level(), torch.no_grad():
        yield
