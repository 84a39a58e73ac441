"""The user's optimizer and schedulers, at another batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from wattune.errors import InputError
from wattune.workloads.optimizers import SCALINGS

LINEAR = ("SGD", "ASGD")
"""Optimizers whose step grows with the gradient; those of all others hardly do."""

INTERVALS = ("step", "epoch")

RULES = {"sqrt": "learning rate by the square root of the batch size", "linear": "learning rate in proportion to it"}


class Recipe:
    """The learning rate and its schedule, whatever the batch size.

    The param groups and the schedulers stay as the user made them, in units of his own batch size: the learning rate
    is multiplied by ``factor`` while the optimizer steps, and as it was afterwards. So every kind of schedule holds,
    and what the user reads or saves is his own. A scheduler ticks once for each ``batch_size`` samples (and for
    the rest of a pass, as in the user's own loop), or once a pass. One that needs a metric, as ReduceLROnPlateau does,
    is stepped by the user between two passes.
    Raises: InputError for what does not step or scale as others do.
    """

    def __init__(self, optimizer: Optimizer, batch_size: int, schedulers: Sequence[Any], *, interval: str, keep: bool):
        if interval not in INTERVALS:
            raise InputError("scheduler_interval", value=interval, allowed=", ".join(INTERVALS))
        for scheduler in schedulers:
            if not isinstance(scheduler, (LRScheduler, ReduceLROnPlateau)):
                raise InputError("scheduler", value=type(scheduler).__name__, allowed="schedulers of torch, or none")
            if getattr(scheduler, "optimizer", optimizer) is not optimizer:
                raise InputError("the scheduler is one of another optimizer", value=type(scheduler).__name__)
        if type(optimizer).__name__ == "LBFGS":
            raise InputError("an optimizer that needs a closure", value="LBFGS", allowed="one that steps without")
        if not keep and not all("lr" in group for group in optimizer.param_groups):
            raise InputError(
                "the optimizer has no learning rate to scale", value=type(optimizer).__name__, hint="keep_recipe=True"
            )
        self.batch_size = batch_size
        self.keep = keep
        self.interval = interval
        self.schedulers = tuple(schedulers)
        self.scaling = "linear" if type(optimizer).__name__ in LINEAR else "sqrt"
        self._optimizer = optimizer
        self._factor = 1.0
        self._ticked = [s for s in schedulers if not isinstance(s, ReduceLROnPlateau)]
        self._ticks = 0
        self._seen = self._rates()
        self._owned: list[Any] = []
        self._hooks: list[Any] = []

    def open(self) -> None:
        """From now on the learning rate is scaled where the optimizer steps, until ``close``."""
        if not self.keep:
            self._hooks = [
                self._optimizer.register_step_pre_hook(lambda *_: self._scale()),
                self._optimizer.register_step_post_hook(lambda *_: self.unscale()),
            ]

    @property
    def rule(self) -> str:
        """How the learning rate follows the batch size, in words."""
        name = type(self._optimizer).__name__
        return f"kept as it is ({name})" if self.keep else f"{RULES[self.scaling]} ({name})"

    def use(self, batch_size: int) -> None:
        """Train with this batch size from the next step on."""
        self._factor = 1.0 if self.keep else math.pow(batch_size / self.batch_size, SCALINGS[self.scaling])

    @property
    def factor(self) -> float:
        """What the user's learning rate is multiplied by while the optimizer steps."""
        return self._factor

    def begin_pass(self) -> None:
        """Between two passes the user may change the learning rate."""
        self._ticks, self._seen = 0, self._rates()

    def check(self) -> None:
        """Raises: InputError where somebody else changed the learning rate since the last step."""
        if [group.get("lr", 0.0) for group in self._optimizer.param_groups] == self._seen:
            return
        now = self._rates()
        change = next((a, b) for a, b in zip(self._seen, now, strict=False) if a != b) if self._seen else ("", "")
        raise InputError(
            "the learning rate changed in the middle of a pass, where the session's steps are not those of the loader",
            value=f"{change[0]} to {change[1]}",
            hint="give the scheduler to wattune.capped(scheduler=...), which ticks it, and do not step it yourself",
        )

    def stepped(self, samples: int, *, is_end: bool = False) -> None:
        """The optimizer stepped, ``samples`` samples into the pass; or the pass is over.

        Raises: InputError where a schedule is at its end.
        """
        if self._ticked and self.interval == "step":
            due = -(-samples // self.batch_size) if is_end else samples // self.batch_size
            for _ in range(due - self._ticks):
                self._tick()
            self._ticks = max(due, self._ticks)
        elif self._ticked and is_end:
            self._tick()
        if self._ticked:
            self._seen = self._rates()

    def unscale(self) -> None:
        """The user's own learning rates again, also where the optimizer failed."""
        if self._owned:
            for group, rate in zip(self._optimizer.param_groups, self._owned, strict=True):
                group["lr"] = rate
            self._owned = []

    def close(self) -> None:
        """Leave the optimizer as it was found."""
        self.unscale()
        for hook in self._hooks:
            hook.remove()

    def state_dict(self) -> dict[str, Any]:
        """The schedulers and how far the pass has ticked."""
        return {"ticks": self._ticks, "schedulers": [s.state_dict() for s in self.schedulers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``, after the optimizer has loaded its own."""
        for scheduler, kept in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(kept)
        self._ticks, self._seen = state["ticks"], self._rates()

    def resume_pass(self, ticks: int) -> None:
        """Go on in the middle of a pass that has ticked so often."""
        self._ticks = ticks

    def _tick(self) -> None:
        for scheduler in self._ticked:
            try:
                scheduler.step()
            except ValueError as error:
                raise InputError(
                    f"the schedule of {type(scheduler).__name__} is over before the training",
                    value=str(error),
                    hint=f"make it for one step for each {self.batch_size} samples, or use scheduler_interval='epoch'",
                ) from error

    def _scale(self) -> None:
        if self._factor != 1.0 and not self._owned:
            groups = self._optimizer.param_groups
            self._owned = [group["lr"] for group in groups]
            for group in groups:
                group["lr"] = group["lr"] * self._factor

    def _rates(self) -> list[float]:
        return [float(group.get("lr", 0.0)) for group in self._optimizer.param_groups]
