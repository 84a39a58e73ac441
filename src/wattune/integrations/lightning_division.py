"""One micro-batch of an optimizer step, and the number by which Lightning is told what to do with it."""

from __future__ import annotations

from typing import Any, NamedTuple

from typing_extensions import Self


class Part(NamedTuple):
    """One micro-batch: ``share`` is its part of the samples of its step; ``ends_pass``: nothing comes after it."""

    data: Any
    samples: int
    share: float
    first: bool
    last: bool
    ends_pass: bool


class Division(float):
    """What ``Trainer.accumulate_grad_batches`` is while one micro-batch of several is trained on.

    Lightning asks that number three things, and of micro-batches that differ in size and number no whole number
    answers all of them. Divided by, it scales the loss. The remainder of the batches that are begun (``ready``) says
    whether the optimizer steps with this one, that of the batches before it whether the gradients are cleared: where
    it is 0. Where a micro-batch is the whole step, the number is simply 1.
    """

    first: bool
    last: bool
    ready: int

    def __new__(cls, value: float, *, first: bool, last: bool, ready: int) -> Self:
        """``value``: the step's samples over those of the micro-batch."""
        made = super().__new__(cls, value)
        made.first, made.last, made.ready = first, last, ready
        return made

    def __rmod__(self, batches: float) -> float:
        return 0 if (self.last if batches == self.ready else self.first) else 1


def division(part: Part, ready: int) -> float:
    """What the number has to be for this micro-batch, with which so many are begun."""
    if part.first and part.last:
        return 1
    return Division(1.0 / part.share, first=part.first, last=part.last, ready=ready)


def kept(number: float) -> dict[str, Any] | float:
    """As a JSON value."""
    if isinstance(number, Division):
        return {"first": number.first, "last": number.last, "ready": number.ready}
    return number


def restored(state: dict[str, Any] | float) -> float:
    """Of ``kept``; the loss was scaled before."""
    return Division(1.0, **state) if isinstance(state, dict) else state
