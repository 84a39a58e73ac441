"""Forward-mode automatic differentiation, owned by one thread at a time since PyTorch's is global to the process.

The level of tangents is global: a second thread that opens or leaves one invalidates the tangents of the first. So one
thread at a time owns forward mode, opens the level and leaves it; its workers only make and unpack dual tensors in
between. Without ``no_grad`` the tape of the dual computation would take the memory that forward mode saves. Fused
attention has no forward derivative; its unfused form does.

Source: comments in pytorch torch/csrc/autograd/forward_grad.cpp and torch/autograd/forward_ad.py (levels); pytorch
issue 117629 (scaled_dot_product_attention).

The requirements of forward gradients are checked here as well, before training begins.
"""

from __future__ import annotations

import functools
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._C._functorch import _jvp_decrement_nesting, _jvp_increment_nesting
from torch._functorch.eager_transforms import _undo_create_differentiable
from torch.autograd import forward_ad
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from wattune.algorithms.base import Trainable
from wattune.algorithms.counting.counter import Place, StagedCopy
from wattune.algorithms.counting.step_counting import SMALL_BATCHES, TrainingPass
from wattune.algorithms.placement import LOW_PRECISION, check_data_type
from wattune.errors import InputError, WorkloadError

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


def along(function: Callable[[Tensor], Tensor], x: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor | None]:
    """The function's value at ``x``, computed once, and its derivatives (m, ...) along ``tangents`` (m, ...).

    Like ``vmap`` of ``torch.func.jvp``, but in the open level, since each call of the latter would open its own.
    Source: pytorch torch/_functorch/eager_transforms.py (``_jvp_with_argnums``).
    """

    def one(tangent: Tensor) -> tuple[Tensor, Tensor]:
        own = _jvp_increment_nesting()
        try:
            with forward_ad._set_fwd_grad_enabled(True):
                output, moved = unpacked(function(dual(x, tangent)))
                moved = torch.zeros_like(output) if moved is None else moved
                return _undo_create_differentiable(output, own), _undo_create_differentiable(moved, own)
        finally:
            _jvp_decrement_nesting()

    outputs: tuple[Tensor, Tensor] = vmap(one, out_dims=(None, 0), randomness="same")(tangents)  # type: ignore[arg-type]
    return outputs


@functools.cache
def _load() -> None:
    # The first dual tensor of a process makes PyTorch compile its decompositions, by a function that it deprecated.
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)
        dual(torch.zeros(1), torch.zeros(1))


_NOT_IMPLEMENTED = re.compile(r"Trying to use forward AD with (\S+) that does not support it")
"""Source: pytorch tools/autograd/gen_variable_type.py (the text of the NotImplementedError)."""


def check_forward_data_type(name: str) -> None:
    """Check that forward gradients support the data type. Raises: InputError."""
    check_data_type(name)
    if name in LOW_PRECISION:
        raise InputError(
            "data type of forward gradients", value=name, allowed="fp32, tf32", hint="backprop trains in fp16 and bf16"
        )


def check_supported(
    trainable: Trainable, module: nn.Module, optimizer: torch.optim.Optimizer, training_pass: TrainingPass
) -> None:
    """Run the pass once on a copy of the model without values, or with them if it needs them.

    Raises: WorkloadError, with its name, for an operation without a forward derivative, or one that is random but not
    dropout; InputError from the pass itself.
    """
    places: tuple[Place, ...] = "meta", "cpu"
    for place in places:
        try:
            stage = StagedCopy(place, trainable, module, optimizer)
            with stage.running():
                batch = stage.batch(trainable, SMALL_BATCHES[0])
                stage.set_gradients(False)
                with stage.forward(train=True):
                    training_pass(stage.module, trainable, batch, lambda _: None)
            return
        except InputError:
            raise
        except Exception as error:  # a model that fails without values may still run with them
            if match := _NOT_IMPLEMENTED.search(str(error)):
                raise WorkloadError(
                    "an operation of the model or its loss without a forward derivative",
                    value=match[1],
                    hint="train with backprop, or with perturb=differences",
                ) from error
            if place == "cpu":
                raise WorkloadError(
                    "a training step of the model fails", value=f"{type(error).__name__}: {error}"
                ) from error
