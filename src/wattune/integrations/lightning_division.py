"""One micro-batch of an optimizer step, and the accumulation count that makes Lightning treat it as such."""

from __future__ import annotations

from typing import Any, NamedTuple

from typing_extensions import Self


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
