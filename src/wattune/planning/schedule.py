"""The times to train at: those of least carbon, or price, of the whole board, chosen once by one forecast.

What the board takes while it waits counts until training ends, so training begins at once where waiting takes more than
it saves.

A plan made once, at one point, is within a few percent of perfect foresight; a new choice every hour follows the errors
of the forecast.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from wattune.cap import PowerCap
from wattune.errors import InputError
from wattune.goal import Aim, Goal
from wattune.intensity import JOULES_PER_KWH, Intensity, Stretch, cheapest
from wattune.planning.plan import plan
from wattune.point import OperatingPoint
from wattune.records import (
    IntensityValue,
    Plan,
    ProfileTable,
    SampleEfficiency,
    Schedule,
    ScheduledTime,
)

SPARE: Final = 0.05
"""Share of the predicted time that is left until the deadline, for steps that take longer and for pauses."""


def plan_by_intensity(
    profile: ProfileTable,
    efficiency: SampleEfficiency | None = None,
    *,
    cap: PowerCap,
    goal: Goal,
    intensity: Intensity,
    now: datetime | None = None,
    batch_size: int | None = None,
    memory_bytes: float | None = None,
) -> Plan:
    """A plan as ``wattune.planning.plan`` makes it, with the times to train at until the goal's deadline.

    Point and times are chosen together: of the points that are best for the goal within a part of the time, the one
    with the least carbon (or price) at its own cheapest times. ``now``: the beginning; None: the first value's time.

    Raises: as ``plan``; InputError without a deadline, without the samples to the target, or for a forecast that does
    not have the present.
    """
    check_intensity(intensity, goal)
    assert goal.deadline_s is not None  # checked
    begin_s = _begin_s(intensity, now)

    def planned(deadline_s: float) -> Plan:
        bounded = replace(goal, deadline_s=deadline_s)
        return plan(profile, efficiency, cap=cap, goal=bounded, batch_size=batch_size, memory_bytes=memory_bytes)

    first = planned(goal.deadline_s)
    plans = {first.point: first}
    for time_s in _front_times(first, goal):
        if time_s <= goal.deadline_s:
            one = planned(time_s * (1 + 1e-9))
            plans.setdefault(one.point, one)
    schedules = {point: _scheduled(one, intensity, begin_s, goal) for point, one in plans.items()}

    def price(one: Plan) -> float:
        return _price(_watts(one), one.rest_w, goal)

    def account(point: OperatingPoint) -> float:
        one = plans[point]
        return price(one) * intensity.account(schedules[point], begin_s, _waiting(one, goal))

    best = min(plans, key=lambda point: (account(point), point))
    fastest = plan(profile, efficiency, cap=cap, batch_size=batch_size, memory_bytes=memory_bytes)
    pick = plans[best]
    at_once = min(plans.values(), key=lambda one: price(one) * _seconds(one))
    return pick.model_copy(
        update={
            "goal": goal,
            "schedule": _record(pick, schedules[best], intensity, begin_s, goal.deadline_s, at_once, fastest),
        }
    )


def check_intensity(intensity: Intensity, goal: Goal, *, is_moving: bool = False) -> None:
    """Check that times can be chosen by this forecast for the goal. Raises: InputError."""
    if goal.deadline_s is None:
        raise InputError(
            f"{intensity.name} without a deadline",
            allowed="a time until which training may wait, such as --deadline 16h",
        )
    if is_moving:
        raise InputError("a cap that changes with a forecast of carbon or price", allowed="one of the two")
    if goal.aim == "cost":
        raise InputError(f"the goal cost with {intensity.name}", allowed="energy, energy-above-rest, edp or time")


def _begin_s(intensity: Intensity, now: datetime | None) -> float:
    if now is None or intensity.begin is None:
        return 0.0
    begin_s = (now - intensity.begin).total_seconds()
    if not 0 <= begin_s < intensity.end_s:
        end = intensity.begin + timedelta(seconds=intensity.end_s)
        raise InputError(
            f"{intensity.name} has no value for the present",
            value=now.isoformat(timespec="minutes"),
            allowed=f"{intensity.begin.isoformat(timespec='minutes')} to {end.isoformat(timespec='minutes')}",
        )
    return begin_s


def _front_times(plan: Plan, goal: Goal) -> list[float]:
    """Predicted seconds of the points of which no other is both faster and better in what the goal counts."""
    times, least = [], math.inf
    known = [one for one in plan.candidates if one.feasible and one.predicted_s and one.predicted_j]
    for one in sorted(known, key=lambda one: one.predicted_s or 0.0):
        time_s, energy_j = one.predicted_s or 0.0, one.predicted_j or 0.0
        if (value := time_s * _price(energy_j / time_s, plan.rest_w, goal)) < least:
            times.append(time_s)
            least = value
    return times


def _scheduled(plan: Plan, intensity: Intensity, begin_s: float, goal: Goal) -> tuple[Stretch, ...]:
    assert goal.deadline_s is not None  # checked
    need_s = _seconds(plan)
    until_s = min(begin_s + goal.deadline_s - SPARE * need_s, intensity.end_s)
    return cheapest(intensity, need_s, begin_s, until_s, waiting=_waiting(plan, goal))


def _waiting(plan: Plan, goal: Goal) -> float:
    """Power of the waiting board over its power in training; 0 if the goal leaves it out, or it is not known."""
    return 0.0 if goal.aim == "energy-above-rest" or plan.rest_w is None else min(1.0, plan.rest_w / _watts(plan))


def _record(
    pick: Plan,
    stretches: tuple[Stretch, ...],
    intensity: Intensity,
    begin_s: float,
    deadline_s: float,
    at_once: Plan,
    fastest: Plan,
) -> Schedule:
    finish_s = stretches[-1].until_s
    until_s = max(finish_s, min(begin_s + deadline_s, intensity.end_s))
    watts, rest_w = _watts(pick), pick.rest_w
    trained = intensity.over(stretches)
    waited = intensity.integral(begin_s, finish_s) - trained
    begin = None if intensity.begin is None else intensity.begin + timedelta(seconds=begin_s)
    ends_s = (*(one.until_s - begin_s for one in stretches[:-1]), None)  # a run that takes longer continues
    return Schedule(
        unit=intensity.unit,
        begin=None if begin is None else begin.isoformat(),
        times=tuple(
            ScheduledTime(from_s=one.from_s - begin_s, until_s=end_s)
            for one, end_s in zip(stretches, ends_s, strict=True)
        ),
        forecast=tuple(
            IntensityValue(time_s=stretch.from_s - begin_s, value=value)
            for stretch, value in intensity.pieces(begin_s, until_s)
        ),
        finish_s=finish_s - begin_s,
        predicted=watts * trained / JOULES_PER_KWH,
        predicted_waiting=None if rest_w is None else rest_w * waited / JOULES_PER_KWH,
        at_once=_at_once(at_once, intensity, begin_s),
        fastest_at_once=_at_once(fastest, intensity, begin_s),
    )


def _at_once(plan: Plan, intensity: Intensity, begin_s: float) -> float:
    return _watts(plan) * intensity.integral(begin_s, begin_s + _seconds(plan)) / JOULES_PER_KWH


def _price(watts: float, rest_w: float | None, goal: Goal) -> float:
    """The part of the power that the goal counts; all of it, if it counts none."""
    aim: Aim = "energy-above-rest" if goal.aim == "energy-above-rest" else "energy"
    return float(Goal(aim).price(watts, rest_w))


def _seconds(plan: Plan) -> float:
    if plan.predicted_s is None:
        raise InputError(
            "the time to the target is not known", hint="give an efficiency record, which `wattune estimate` makes"
        )
    return plan.predicted_s


def _watts(plan: Plan) -> float:
    assert plan.power_mean_w is not None  # that of every plan
    return plan.power_mean_w
