"""A goal over the points of a table that stay under a cap: the best one, what each one lacks, and the front."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from wattune.cap import SensorLimit
from wattune.errors import InputError, NoFeasiblePoint
from wattune.goal import Goal
from wattune.planning.candidates import rank, why_slower
from wattune.planning.table import Option, PlanningTable
from wattune.records import FrontPoint

MORE = {
    "time": "slower",
    "energy": "more energy",
    "energy-above-rest": "more energy above rest",
    "edp": "more energy times time",
    "cost": "more expensive",
}
"""Aim -> remark on a point that is not the best for it, after a ratio."""


class Objective:
    """A goal over the points of ``table`` that stay under ``limit``.

    Raises: InputError for a bound in seconds or joules if the samples to the target are unknown, and for an aim above
    rest if the power at rest is.
    """

    def __init__(self, goal: Goal, table: PlanningTable, limit: SensorLimit):
        self.goal = goal
        self.table = table
        self.limit = limit
        self._is_time = goal.is_time
        self._samples = table.reference_samples
        is_in_seconds, is_in_joules = goal.deadline_s is not None, goal.energy_j is not None
        bound = "a deadline" if is_in_seconds else "a bound on the energy" if is_in_joules else None
        if bound is not None and self._samples is None:
            raise InputError(
                f"{bound} without the samples to the target",
                hint="give an efficiency record, which `wattune estimate` makes, or use max_slowdown",
            )
        goal.price(1.0, table.profile.rest_w)  # refused before anything is chosen

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """The points that stay under the cap and whose samples to the target are known."""
        known = (option for option in self.table.at.values() if option.relative_time is not None)
        return tuple(option for option in known if self.limit.allows(option.capped_w))

    @cached_property
    def _least_time(self) -> float:
        return min(map(time_of, self.options))

    def value(self, option: Option) -> float:
        """The quantity that the goal makes least: relative time multiplied by the price of a second at the point."""
        return time_of(option) * self.price(option)

    def best(self, batch_size: int | None = None, *, in_bound: bool = False) -> Option | None:
        """The best point, or the best of this batch size; None if there is none.

        If no point meets the bound, it is the one that comes nearest to it: the fastest for a deadline, the one of
        least energy for a budget. A slowdown is relative to the fastest of the points that are chosen from. With
        ``in_bound`` it is relative to the fastest of all points, and a point that does not meet the bound is not the
        best.
        """
        options = [one for one in self.options if batch_size is None or one.cell.batch_size == batch_size]
        if not options:
            return None
        if within := self._within(options, fastest=self._least_time if in_bound else None):
            return min(within, key=lambda option: (self.value(option), rank(option)))
        if in_bound:
            return None
        key = energy_of if self.goal.energy_j is not None else time_of
        return min(options, key=lambda option: (key(option), rank(option)))

    def meets(self, option: Option) -> bool:
        """Check if a point under the cap meets the bound, a slowdown being relative to the fastest of all points."""
        return bool(self._within([option], fastest=self._least_time))

    def check(self, pick: Option) -> None:
        """Check that the pick meets a deadline. Raises: NoFeasiblePoint with the earliest time."""
        if self.goal.deadline_s is not None and not self._within([pick]):
            earliest = min(self.options, key=time_of)
            raise NoFeasiblePoint(
                "no point under the cap meets the deadline",
                value=f"{self.goal.deadline_s:.4g} s",
                allowed=f"{self._seconds(earliest):.4g} s at the earliest, with {earliest.point}",
                hint="give more time, or raise the cap",
            )

    def why_not(self, option: Option, pick: Option) -> str | None:
        """The reason why a point under the cap is not the chosen one; None if it is."""
        if self._is_time or option.relative_time is None or option.point == pick.point:
            return why_slower(option, pick)
        if not self.meets(option):
            return self._why_beyond(option)
        ratio = (self.value(option) / self.value(pick)) ** self.goal.exponent
        more = MORE[self.goal.aim]
        if ratio >= 1.01:
            return f"{ratio:.2f} x {more}"
        return f"less than 1 % {more}" if ratio > 1 else why_slower(option, pick)

    def front(self, batch_size: int | None = None) -> tuple[FrontPoint, ...]:
        """The points of which no other is both faster and takes less energy, the fastest first."""
        options = [one for one in self.options if batch_size is None or one.cell.batch_size == batch_size]
        front: list[Option] = []
        for one in sorted(options, key=rank):
            if not front or energy_of(one) < energy_of(front[-1]):
                front.append(one)
        return tuple(
            FrontPoint(
                **one.point.fields(),
                slower=time_of(one) / time_of(front[0]) - 1,
                saves=1 - energy_of(one) / energy_of(front[0]),
            )
            for one in front
        )

    def _within(self, options: Iterable[Option], *, fastest: float | None = None) -> list[Option]:
        """Those that meet the bound; ``fastest``: the time that a slowdown is relative to, if not of these."""
        goal, options = self.goal, list(options)
        if goal.max_slowdown is not None:
            least = min(map(time_of, options)) if fastest is None else fastest
            return [option for option in options if time_of(option) <= (1 + goal.max_slowdown) * least]
        if goal.deadline_s is not None:
            return [option for option in options if self._seconds(option) <= goal.deadline_s]
        if goal.energy_j is not None:
            return [option for option in options if self._joules(option) <= goal.energy_j]
        return options

    def _why_beyond(self, option: Option) -> str:
        if self.goal.max_slowdown is not None:
            ratio = time_of(option) / self._least_time
            return f"{ratio:.2f} x slower than the fastest point"
        if self.goal.deadline_s is not None:
            return f"takes {self._seconds(option):.4g} s, over the deadline"
        return f"takes {self._joules(option):.4g} J, over the budget"

    def price(self, option: Option) -> float:
        """The goal's price of a second at this point."""
        if self.goal.aim == "time":
            return 1.0  # without numpy, which takes most of a plan's time
        return float(self.goal.price(option.mean_w, self.table.profile.rest_w))

    def _seconds(self, option: Option) -> float:
        return time_of(option) * (self._samples or math.nan)

    def _joules(self, option: Option) -> float:
        return self._seconds(option) * option.mean_w


def time_of(option: Option) -> float:
    """The relative time of an option whose samples are known."""
    assert option.relative_time is not None
    return option.relative_time


def energy_of(option: Option) -> float:
    """The relative energy of an option whose samples are known: watts times relative time."""
    return time_of(option) * option.mean_w


def predictions(objective: Objective, time_s: float | None, energy_j: float | None) -> dict[str, Any]:
    """The plan's fields on this time and energy to the target, None if unknown, and on its goal."""
    goal, rest_w = objective.goal, objective.table.profile.rest_w
    fields: dict[str, Any] = {"goal": goal, "rest_w": rest_w, "predicted_s": time_s, "predicted_j": energy_j}
    fields |= {"predicted_above_rest_j": None, "predicted_cost": None, "reached_share": None}
    if time_s is None or energy_j is None:
        return fields
    if rest_w is not None and energy_j > time_s * rest_w:
        fields["predicted_above_rest_j"] = energy_j - time_s * rest_w
    if goal.aim == "cost":
        fields["predicted_cost"] = time_s * float(goal.price(energy_j / time_s, rest_w))
    if goal.energy_j is not None and energy_j > goal.energy_j:
        fields["reached_share"] = goal.energy_j / energy_j
    return fields
