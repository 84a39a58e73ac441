"""The optimizer step of a session: gradients accumulated over micro-batches, scaled, measured, applied."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from wattune.errors import InputError
from wattune.loop.recipe import needs_closure
from wattune.loop.step_counter import StepWorkCounter

if TYPE_CHECKING:
    from wattune.loop.request import Request

OVERFLOWS = 25
"""Consecutive steps that gradient scaling may skip: after this many halvings, no scale would have helped."""


def squared_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Squared norm of the present gradients, without sparse ones; a tensor, so that it does not wait for the GPU."""
    gradients = [p.grad for p in parameters if p.grad is not None and not p.grad.is_sparse]
    if not gradients:
        return torch.zeros(())
    norms = torch._foreach_norm(gradients)
    return torch.stack([norm.float() for norm in norms]).square().sum()


def trained(optimizer: Optimizer) -> Iterator[Tensor]:
    """The optimizer's parameters. Gradients of other parameters are never cleared, and grow from step to step."""
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


class OptimizerStepper:
    """Accumulates the gradients of a step, and takes the step.

    If their norms are wanted, those after the first micro-batch and those of the whole step give the gradient noise.
    Raises: InputError for a loop that steps or clears gradients itself.
    """

    def __init__(self, asked: Request, counter: StepWorkCounter):
        self.is_new = False
        """True if the last step brought a new estimate of the gradient noise."""
        self._scaler, self._before_step = asked.scaler, asked.given.before_step
        self._optimizer, self._recipe, self._sample_model = asked.optimizer, asked.recipe, asked.sample_model
        self._counter = counter
        self._stepping = self._stepped = False
        self._is_first = True
        self._overflows = 0  # consecutive steps that gradient scaling has skipped
        self._parts = 0
        self._first: tuple[int, Tensor] | None = None
        self._witness: Tensor | None = None
        self._left: Tensor | None = None  # a parameter whose gradient is still that of the last step
        self._version = 0
        self._hooks: list[Any] = []

    def open(self) -> None:
        """Refuse steps of the optimizer by the user's loop, until ``close``."""
        self._hooks = [self._optimizer.register_step_pre_hook(lambda *_: self._only_here())]
        if self._scaler is not None:  # which may skip it
            self._hooks.append(self._optimizer.register_step_post_hook(lambda *_: self._done()))

    def begin(self) -> None:
        """Begin a step, without gradients."""
        left = self._left
        if left is not None and left.grad is not None and left.grad._version != self._version and left.grad.any():
            raise InputError(
                "the gradients were changed after the optimizer had stepped, which has no effect",
                hint="clip gradients in wattune.capped(before_step=...)",
            )
        self._optimizer.zero_grad(set_to_none=True)
        self._parts, self._first, self._witness, self._left = 0, None, None, None

    def add(self, loss: Tensor, samples: int, share: float, *, norms: bool) -> None:
        """Backpropagate the mean loss of one micro-batch, which has this share of the step's samples."""
        witness = self._witness
        if witness is not None and (witness.grad is None or witness.grad._version != self._version):
            raise InputError(
                "the gradients were cleared or changed in the middle of a step",
                hint="remove optimizer.zero_grad() from the loop: the session calls it. Clip gradients in before_step=",
            )
        if share != 1.0:
            loss = loss * share
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        torch.autograd.backward(loss)
        self._parts += 1
        if share == 1.0:
            return
        if self._parts == 1:
            self._witness = next((p for p in trained(self._optimizer) if p.grad is not None), None)
            if norms:
                with self._counter.uncounted():
                    self._first = samples, squared_norm(trained(self._optimizer)) / share**2
        if self._witness is not None and self._witness.grad is not None:
            self._version = self._witness.grad._version  # any other write to it increases its version

    def step(self, samples: int) -> bool:
        """Take the step of ``samples`` samples. Returns: True if the parameters changed.

        Raises: InputError if gradient scaling has skipped too many consecutive steps.
        """
        scaler, scale = self._scaler, 1.0
        if scaler is not None:
            scale = float(scaler.get_scale()) if self._first is not None else 1.0
            if self._before_step is not None:
                scaler.unscale_(self._optimizer)
                if self._first is not None:
                    self._first = self._first[0], self._first[1] / scale**2
                    scale = 1.0
        self.is_new = False
        if self._first is not None:
            small, square = self._first
            with self._counter.uncounted():
                squares = torch.stack([square, squared_norm(trained(self._optimizer))]).tolist()
            self.is_new = self._sample_model.add(small, squares[0] / scale**2, samples, squares[1] / scale**2)
        if self._before_step is not None:
            self._before_step()
        self._stepping, self._stepped = True, scaler is None
        try:
            if scaler is not None:
                scaler.step(self._optimizer)
                scaler.update()
            else:
                self._optimizer.step()
        except Exception as error:
            # The signature of a step does not tell whether it calls its closure untested; its first call does.
            parameters = inspect.signature(self._optimizer.step).parameters.values()
            has_one = any(one.name == "closure" or one.kind is one.VAR_POSITIONAL for one in parameters)
            said = str(error).lower()
            is_missed = said in ("'nonetype' object is not callable", "tuple index out of range") or "closure" in said
            if self._is_first and has_one and is_missed:
                raise needs_closure(self._optimizer) from error
            raise
        finally:
            self._stepping = False
            self._recipe.unscale()
        self._is_first = self._is_first and not self._stepped
        self._left = next((p for p in trained(self._optimizer) if p.grad is not None and not p.grad.is_sparse), None)
        if self._left is not None and self._left.grad is not None:
            self._version = self._left.grad._version
        if scaler is not None:
            self._overflows = 0 if self._stepped else self._overflows + 1
            if self._overflows >= OVERFLOWS:
                raise InputError(
                    "gradient scaling found no scale at which the gradients are finite",
                    value=f"{self._overflows} consecutive steps were skipped",
                    hint="train in bf16 or fp32, use a lower learning rate, or look for infinities in model and loss",
                )
        return self._stepped

    def close(self) -> None:
        """Restore the optimizer."""
        for hook in self._hooks:
            hook.remove()

    def _only_here(self) -> None:
        if not self._stepping:
            raise InputError(
                "the optimizer was stepped by the loop",
                hint="remove optimizer.step() from it: session.backward(loss) steps when a batch is complete",
            )

    def _done(self) -> None:
        self._stepped = True
