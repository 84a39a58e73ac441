"""The user's learning rate and schedulers, at another batch size."""

from __future__ import annotations

import copy
import inspect
import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    CyclicLR,
    ExponentialLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    ReduceLROnPlateau,
    StepLR,
)

from wattune.errors import InputError
from wattune.workloads.optimizers import SCALINGS

LINEAR = ("SGD", "ASGD")
"""Optimizers whose step grows with the gradient; the steps of all others hardly do."""

INTERVALS = ("step", "epoch")

EITHER = (ExponentialLR, MultiStepLR, StepLR)
"""Schedulers that most recipes step once per epoch: at each step, their learning rate is at zero within one."""

BY_STEP = (CyclicLR, OneCycleLR, ReduceLROnPlateau)
"""Schedulers that count steps in every recipe, and one that the user steps."""

RUN_OUT = 0.01
"""Share of its highest learning rate at which a schedule has run out: before a pass ends, it was meant for epochs."""

MOST_OF_A_PASS = 0.9
"""Share of a pass before which that counts: a training of a single pass may end with its schedule."""

LONGEST_PASS = 10_000
"""Steps of a schedule that are looked at."""

RAMP_STEPS = 50
"""Optimizer steps over which the learning rate may double, above the user's own.

Source: gradual warm-up, Goyal et al. 2017, section 2.2.
"""

RULES = {
    "sqrt": "learning rate in proportion to the square root of the batch size",
    "linear": "learning rate in proportion to the batch size",
}


def needs_closure(optimizer: Optimizer) -> InputError:
    """The error for an optimizer that needs a closure."""
    name = type(optimizer).__name__
    return InputError("an optimizer that needs a closure", value=name, allowed="one that steps without a closure")


class Recipe:
    """The learning rate and its schedule, at any batch size.

    The param groups and the schedulers stay as the user made them, for the user's own batch size: the learning rate is
    multiplied by ``factor`` during each step of the optimizer, and restored after it. Any kind of schedule therefore
    works, and the user reads and saves the original values. Above 1 the factor rises slowly: ``ceiling`` doubles over
    ``RAMP_STEPS`` steps that want more. A scheduler steps once per ``batch_size`` samples (and
    once for the rest of a pass, as in the user's own loop), or once per pass. One that needs a metric, as
    ReduceLROnPlateau does, is stepped by the user between two passes. ``interval``: of ``INTERVALS``; None: "step", if
    no scheduler is of ``EITHER`` or runs out within the ``steps`` of a pass (None: not known).

    Raises: InputError for an optimizer or scheduler that cannot be stepped or scaled in this way.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        batch_size: int,
        schedulers: Sequence[Any],
        *,
        interval: str | None,
        keep: bool,
        steps: int | None,
    ):
        for scheduler in schedulers:
            if not isinstance(scheduler, (LRScheduler, ReduceLROnPlateau)):
                raise InputError("scheduler", value=type(scheduler).__name__, allowed="schedulers of torch, or none")
            if getattr(scheduler, "optimizer", optimizer) is not optimizer:
                raise InputError("the scheduler belongs to another optimizer", value=type(scheduler).__name__)
        if interval is None:
            if either := next((one for one in schedulers if _may_count_epochs(one, optimizer, steps)), None):
                raise InputError(
                    f"scheduler_interval is missing: {type(either).__name__} may count steps or epochs",
                    allowed=", ".join(INTERVALS),
                )
            interval = "step"
        if interval not in INTERVALS:
            raise InputError("scheduler_interval", value=interval, allowed=", ".join(INTERVALS))
        # Of the class: a scheduler puts a function of its own in the place of the optimizer's.
        needed = list(inspect.signature(type(optimizer).step).parameters.values())[1:]
        if any(one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in needed):
            raise needs_closure(optimizer)
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
        self._wanted = 1.0
        self.ceiling = 1.0
        """Largest factor at present."""
        self.may_rise = not keep
        """True if ``ceiling`` may exceed 1."""
        self._ticked = [s for s in schedulers if not isinstance(s, ReduceLROnPlateau)]
        self._ticks = 0
        self._counts = [_count(scheduler) for scheduler in self._ticked]
        self._expected = self._rates()
        self._owned: list[Any] = []
        self._hooks: list[Any] = []

    def open(self) -> None:
        """Scale the learning rate during each step of the optimizer, until ``close``."""
        if not self.keep:
            self._hooks = [
                self._optimizer.register_step_pre_hook(lambda *_: self._scale()),
                self._optimizer.register_step_post_hook(lambda *_: self._stepped()),
            ]

    @property
    def rule(self) -> str:
        """Rule by which the learning rate follows the batch size, in words."""
        name = type(self._optimizer).__name__
        return f"unchanged ({name})" if self.keep else f"{RULES[self.scaling]} ({name})"

    def use(self, batch_size: int) -> None:
        """Scale for this batch size from the next step on."""
        self._wanted = 1.0 if self.keep else math.pow(batch_size / self.batch_size, SCALINGS[self.scaling])

    @property
    def factor(self) -> float:
        """Factor of the user's learning rate during a step of the optimizer."""
        return min(self._wanted, self.ceiling)

    def hold(self) -> None:
        """Stay at the user's learning rate, or below it, from now on."""
        self.may_rise, self.ceiling = False, 1.0

    def begin_pass(self) -> None:
        """Begin a pass: between two passes the user may change the learning rate, but not step a scheduler that the
        session steps. Raises: InputError if that happened."""
        for scheduler, count in zip(self._ticked, self._counts, strict=True):
            if _count(scheduler) != count:
                raise InputError(
                    f"{type(scheduler).__name__} was stepped outside the session, which steps it as well",
                    hint="remove scheduler.step() from the loop, or do not give it to wattune.capped",
                )
        self._ticks, self._expected = 0, self._rates()

    def check(self) -> None:
        """Check the learning rate. Raises: InputError if the user's loop changed it since the last step."""
        if [group.get("lr", 0.0) for group in self._optimizer.param_groups] == self._expected:
            return
        now = self._rates()
        change = (
            next((a, b) for a, b in zip(self._expected, now, strict=False) if a != b) if self._expected else ("", "")
        )
        raise InputError(
            "the learning rate changed in the middle of a pass, in which the session's steps are not the loader's",
            value=f"{change[0]} to {change[1]}",
            hint="give the scheduler to wattune.capped(scheduler=...), which steps it, and do not step it yourself",
        )

    def stepped(self, samples: int, *, is_end: bool = False) -> None:
        """Step the schedulers after the optimizer stepped, ``samples`` samples into the pass, or at its end.

        Raises: InputError if a schedule is at its end.
        """
        if self._ticked and self.interval == "step":
            due = -(-samples // self.batch_size) if is_end else samples // self.batch_size
            for _ in range(due - self._ticks):
                self._tick()
            self._ticks = max(due, self._ticks)
        elif self._ticked and is_end:
            self._tick()
        if self._ticked:
            self._expected = self._rates()

    def unscale(self) -> None:
        """Restore the user's own learning rates, also after the optimizer failed."""
        if self._owned:
            for group, rate in zip(self._optimizer.param_groups, self._owned, strict=True):
                group["lr"] = rate
            self._owned = []

    def close(self) -> None:
        """Restore the optimizer."""
        self.unscale()
        for hook in self._hooks:
            hook.remove()

    def state_dict(self) -> dict[str, Any]:
        """State of the schedulers, and their number of steps in this pass."""
        return {
            "ticks": self._ticks,
            "schedulers": [s.state_dict() for s in self.schedulers],
            "ceiling": self.ceiling,
            "may_rise": self.may_rise,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``, after the optimizer has loaded its own state."""
        for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(saved)
        self._counts = [_count(scheduler) for scheduler in self._ticked]
        self._ticks, self._expected = state["ticks"], self._rates()
        self.ceiling, self.may_rise = state.get("ceiling", 1.0), state.get("may_rise", not self.keep)

    def resume_pass(self, ticks: int) -> None:
        """Resume in the middle of a pass in which the schedulers have stepped ``ticks`` times."""
        self._ticks = ticks

    def _tick(self) -> None:
        for scheduler in self._ticked:
            try:
                with warnings.catch_warnings():
                    # Gradient scaling may have skipped every step so far, and the schedule counts skipped steps.
                    warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
                    scheduler.step()
            except ValueError as error:
                raise InputError(
                    f"the schedule of {type(scheduler).__name__} ends before the training run",
                    value=str(error),
                    hint=f"make it for one step per {self.batch_size} samples, or use scheduler_interval='epoch'",
                ) from error
        self._counts = [_count(scheduler) for scheduler in self._ticked]

    def _stepped(self) -> None:
        self.unscale()
        if self.may_rise and self._wanted > self.ceiling:
            self.ceiling = min(self._wanted, self.ceiling * 2 ** (1 / RAMP_STEPS))

    def _scale(self) -> None:
        factor = self.factor
        if factor != 1.0 and not self._owned:
            groups = self._optimizer.param_groups
            self._owned = [group["lr"] for group in groups]
            for group in groups:
                group["lr"] = group["lr"] * factor

    def _rates(self) -> list[float]:
        return [float(group.get("lr", 0.0)) for group in self._optimizer.param_groups]


def _may_count_epochs(scheduler: Any, optimizer: Optimizer, steps: int | None) -> bool:
    """True unless the schedule certainly counts steps."""
    if isinstance(scheduler, BY_STEP):
        return False
    return isinstance(scheduler, EITHER) or steps is None or _runs_out(scheduler, optimizer, steps)


def _runs_out(scheduler: Any, optimizer: Optimizer, steps: int) -> bool:
    """True if a schedule, stepped with each batch, comes to nothing or to its end in most of ``steps`` steps, and if
    it cannot be copied."""
    groups = [{**group, "params": [torch.zeros(1)]} for group in optimizer.param_groups]
    alone = SGD(groups, lr=0.0)  # a copy of the optimizer itself would take its parameters along
    try:
        copied = copy.deepcopy(scheduler, {id(optimizer): alone})
    except Exception:  # noqa: BLE001 - its function may hold anything
        return True
    rates = [group["lr"] for group in alone.param_groups]
    highest = rates
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no optimizer steps here
        for _ in range(min(int(MOST_OF_A_PASS * steps), LONGEST_PASS)):
            try:
                copied.step()
            except ValueError:
                return True
            rates = [group["lr"] for group in alone.param_groups]
            highest = [max(pair) for pair in zip(highest, rates, strict=True)]
            if all(rate <= RUN_OUT * most for rate, most in zip(rates, highest, strict=True)):
                return True
    return False


def _count(scheduler: Any) -> int | None:
    """Steps of the scheduler so far; None if it does not count them."""
    count = getattr(scheduler, "last_epoch", None)
    return count if isinstance(count, int) else None
