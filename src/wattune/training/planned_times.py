"""Training at the times of a plan's schedule: the schedule as a cap, and the carbon or money that training took."""

from __future__ import annotations

from datetime import datetime

from wattune.cap import PowerCap
from wattune.cap_source import PAUSE_W, UNLIMITED_W, CapTrace
from wattune.intensity import JOULES_PER_KWH, Intensity
from wattune.records import CapInterval, Plan, Schedule


def cap_of_schedule(plan: Plan, schedule: Schedule) -> CapTrace:
    """A schedule as a cap that changes: the plan's constant cap while training runs, else 0 W."""
    asked_w = plan.supply_cap_w if plan.supply_cap_w is not None else plan.cap_w
    caps: dict[float, float] = {0.0: PAUSE_W}
    for time in schedule.times:
        caps[time.from_s] = UNLIMITED_W if asked_w is None else asked_w
        if time.until_s is not None:
            caps[time.until_s] = PAUSE_W
    begin = None if schedule.begin is None else datetime.fromisoformat(schedule.begin)
    why = "more carbon now than later" if schedule.unit == "gco2_per_kwh" else "a higher price now than later"
    form = PowerCap(side=plan.cap_side)
    return CapTrace(form, tuple(caps), tuple(caps.values()), begin, "the plan's times", why)


def taken(schedule: Schedule, intervals: tuple[CapInterval, ...], time_s: float) -> float:
    """Grams of CO2, or money, of the energy of a run of ``time_s`` seconds, by the forecast of its schedule.

    Each interval counts with the mean of the forecast over its time; the last value holds after its end.
    """
    forecast = Intensity(
        tuple(one.time_s for one in schedule.forecast), tuple(one.value for one in schedule.forecast), schedule.unit
    )
    total = 0.0
    ends_s = [*(one.time_s for one in intervals[1:]), time_s]
    for one, end_s in zip(intervals, ends_s, strict=True):
        begin_s = one.time_s if one.cap_time_s is None else one.cap_time_s
        if (length_s := end_s - one.time_s) > 0:
            total += one.energy_j / JOULES_PER_KWH * forecast.integral(begin_s, begin_s + length_s) / length_s
    return total
