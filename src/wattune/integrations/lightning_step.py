"""Lightning's optimizer step and its micro-batches: the step was taken or skipped, and the norms of its gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Trainer
from torch import Tensor
from torch.optim import Optimizer
from typing_extensions import Self

from wattune.online import Session
from wattune.online.optimizer_step import Overflows, squared_norm, trained


class LightningStep:
    """The current step, from ``begin`` to ``end``, observed through hooks of the optimizer until ``close``.

    Lightning runs forward and backward passes within ``optimizer.step``, or before it if gradients are scaled.
    """

    def __init__(self, session: Session, trainer: Trainer, optimizer: Optimizer):
        self.is_under_way = False
        self._session = session
        self._scaler: Any = getattr(trainer.precision_plugin, "scaler", None)
        self._overflows = Overflows()
        self._is_stepped = self._is_disturbed = self._is_complete = self._is_backward = False
        self._first: tuple[int, Tensor] | None = None
        self._both: Tensor | None = None
        self._hooks = [optimizer.register_step_post_hook(lambda *_: self._stepped())]
        counter = session.run.counter
        if counter.counts:
            # After the counter's own hook, which assumes that a step is the optimizer's work only.
            self._hooks.append(optimizer.register_step_pre_hook(lambda *_: counter.optimizing(self._is_complete)))

    def close(self) -> None:
        """Remove the hooks from the optimizer."""
        for hook in self._hooks:
            hook.remove()

    def begin(self) -> None:
        """Begin a step, before its first micro-batch."""
        self.is_under_way = True
        self._is_stepped = self._is_disturbed = self._is_complete = self._is_backward = False
        self._first, self._both = None, None

    def disturb(self) -> None:
        """Mark the step as not representative, because something else ran in the middle of it."""
        self._is_disturbed = True

    def loss(self, outputs: Any) -> None:
        """Watch the loss of a micro-batch: ``outputs`` of its training step, which are weighted by its share."""
        watch = self._session.rate_watch
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if watch is not None and isinstance(loss, Tensor):
            with self._session.run.counter.uncounted():
                watch.add(loss, 1.0)

    def backward(self, part: Part, *, wants_norms: bool) -> None:
        """Read the gradients of a micro-batch."""
        self._is_backward = True
        if wants_norms and part.first and not part.last:
            with self._session.run.counter.uncounted():
                square = squared_norm(trained(self._session.optimizer)) / (part.share * self._scale()) ** 2
            self._first = part.samples, square

    def complete(self, optimizer: Optimizer) -> None:
        """Read the complete gradients, which are unscaled unless the optimizer does that itself."""
        counter = self._session.run.counter
        if self._first is not None:
            scale = self._scale() if getattr(optimizer, "_step_supports_amp_scaling", False) else 1.0
            with counter.uncounted():
                self._both = torch.stack([self._first[1], squared_norm(trained(self._session.optimizer)) / scale**2])
        self._is_complete = True
        counter.optimizing(True)

    def end(self, samples: int) -> None:
        """End the step of ``samples`` samples. Raises: like ``Session.end_step``; InputError if all are skipped."""
        session, self.is_under_way = self._session, False
        session.end_step(stepped=self._is_stepped and not self._is_disturbed)
        if session.rate_watch is not None:
            session.rate_watch.end_step()
        if self._scaler is not None:
            self._overflows.count(skipped=self._is_backward and not self._is_stepped)
        if self._first is None or self._both is None or not self._is_stepped:
            return
        small, big = self._both.tolist()
        if session.sample_model.add(self._first[0], small, samples, big):
            session.run.relative(session.sample_model.relative)

    def _stepped(self) -> None:
        self._is_stepped = True

    def _scale(self) -> float:
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())


class Part(NamedTuple):
    """One micro-batch: ``share`` is its share of its step's samples; ``ends_pass``: it is the last of the pass."""

    data: Any
    samples: int
    share: float
    first: bool
    last: bool
    ends_pass: bool


class Division(float):
    """Value of ``Trainer.accumulate_grad_batches`` during one micro-batch of several.

    Lightning uses that number for three decisions, and no integer fits all three if micro-batches vary in size and
    number. It divides the loss by it. The optimizer steps if the count of batches including this one (``ready``) modulo
    the number is 0, and the gradients are cleared if the count before this one modulo the number is 0. For a
    micro-batch that is a whole step, the number is simply 1.
    """

    first: bool
    last: bool
    ready: int

    def __new__(cls, value: float, *, first: bool, last: bool, ready: int) -> Self:
        """Make one of ``value``: the step's samples over those of the micro-batch."""
        number = super().__new__(cls, value)
        number.first, number.last, number.ready = first, last, ready
        return number

    def __rmod__(self, batches: float) -> float:
        return 0 if (self.last if batches == self.ready else self.first) else 1


def division(part: Part, ready: int) -> float:
    """The accumulation count for this micro-batch, the ``ready``-th of the epoch."""
    if part.first and part.last:
        return 1
    return Division(1.0 / part.share, first=part.first, last=part.last, ready=ready)


def division_state(number: float) -> dict[str, Any] | float:
    """The accumulation count as a JSON value."""
    if isinstance(number, Division):
        return {"first": number.first, "last": number.last, "ready": number.ready}
    return number


def division_from(state: dict[str, Any] | float) -> float:
    """The accumulation count of a ``division_state``, with a scale of 1: the loss is already scaled."""
    return Division(1.0, **state) if isinstance(state, dict) else state
