"""Strategies of a profile: the cells to measure, and their order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import Any

from wattune.cap import SensorLimit
from wattune.devices import Sensor
from wattune.errors import InputError
from wattune.goal import TIME, Goal
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.records import AbortedProbe, ProfileCell
from wattune.search.forecast import FORECAST
from wattune.search.observation import capped_power

Measure = Callable[[OperatingPoint], ProfileCell | AbortedProbe]
"""Measures a point."""

Climbs = Sequence[Sequence[Knobs]]
"""See ``Device.climbs``."""

STRATEGIES: dict[str, str] = {
    "full": "every batch size at every clock",
    "staircase": "only along the cap: at most one cell for each batch size and each clock",
    "guided": "the cells that tell most about the best one under the cap",
}
"""Name of each strategy -> the cells that it measures."""


def shapes(batch_sizes: Sequence[int], micro_batch_sizes: Sequence[int]) -> list[BatchShape]:
    """Every batch size with every micro-batch size that divides it; in one forward pass if none does."""
    return [BatchShape(b, m) for b in batch_sizes for m in [m for m in micro_batch_sizes if b % m == 0] or [b]]


def checked(
    strategy: str | None, limit_w: float | None, steps: int, names: Collection[str] = (), goal: Goal = TIME
) -> str:
    """The strategy to use; if it is None, under a limit the guided one for several clocks or for another goal than the
    time, else the staircase; without a limit the full grid. ``names``: the knobs that the device offers.

    Raises: InputError.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise InputError("steps", value=steps, allowed="1 or more")
    if strategy is None:
        if limit_w is None:
            return "full"
        # Along each combination of the other clocks, a staircase takes hundreds of probes.
        can_forecast = len(names) < 2 or FORECAST.issuperset(names)
        return "guided" if can_forecast and (len(names) > 1 or not goal.is_time) else "staircase"
    if strategy not in STRATEGIES:
        raise InputError("strategy", value=strategy, allowed=", ".join(STRATEGIES))
    if strategy != "full" and limit_w is None:
        raise InputError(f"the strategy {strategy}", allowed="only with a cap", hint='give cap_w, or take "full"')
    if strategy == "staircase" and not goal.is_time:
        raise InputError(f"the goal {goal.aim} with the strategy staircase", allowed="guided or full")
    return strategy


def least_power(point: OperatingPoint) -> Any:
    """Sort key: the point that draws least comes first, by all that is known before it is measured."""
    return point.knobs.order, point.shape.micro, point.shape.batch


Absent = Collection[OperatingPoint]
"""Points that cannot be measured, since the device replays a table without them."""


def full(rows: Sequence[BatchShape], climbs: Climbs, measure: Measure, absent: Absent = ()) -> None:
    """Measure every shape at every setting; one that does not fit in memory only once."""
    for shape in rows:
        for knobs in _present(shape, list(chain(*climbs)), absent):
            if _out_of_memory(measure(OperatingPoint(shape, knobs))):
                break


def stays_under(limit: SensorLimit, sensor: Sensor) -> Callable[[ProfileCell | AbortedProbe], bool]:
    """The test that a probe stays under the limit for sure."""

    def is_kept(probe: ProfileCell | AbortedProbe) -> bool:
        power_w = _capped_w(probe, limit, sensor)
        return not isinstance(probe, AbortedProbe) if power_w is None else limit.allows(power_w)

    return is_kept


def _capped_w(probe: ProfileCell | AbortedProbe, limit: SensorLimit, sensor: Sensor) -> float | None:
    """Power of a probe in the terms of the limit; None if it was stopped or did not fit in memory."""
    if isinstance(probe, AbortedProbe) or probe.out_of_memory:
        return None
    return capped_power(probe, sensor.window_s, limit.window_s, limit.window_s)


FAR = 0.8
"""Share of the limit below which the power at the lowest clock is far from it."""


def quick_start(
    rows: Sequence[BatchShape], climb: Sequence[Knobs], measure: Measure, limit: SensorLimit, sensor: Sensor
) -> int:
    """Level of a climb over the clock at which a staircase may begin: the longest steps are at its lowest clocks.

    Probes of a middle shape, at the lowest clock, the next and then twice as high each time, tell how the power rises,
    as long as twice the rise so far stays under the limit: the first probe above it is as near to it as in a climb.
    The staircase begins there, or at the lowest clock if the power there is not ``FAR`` from the limit. Only the
    highest feasible clock of a batch size can be the fastest.
    """
    shape = sorted(rows, key=lambda one: (one.micro, one.batch))[len(rows) // 2]
    clocks = [knobs["clock_mhz"] for knobs in climb[: (len(climb) + 1) // 2]]
    low_w, level, at = _capped_w(measure(OperatingPoint(shape, climb[0])), limit, sensor), 0, 1
    if low_w is None or not limit.allows(low_w / FAR):
        return 0
    while at > level:
        power_w = _capped_w(measure(OperatingPoint(shape, climb[at])), limit, sensor)
        if power_w is None or not limit.allows(power_w):
            break
        slope = 2 * max(0.0, power_w - low_w) / (clocks[at] - clocks[0])
        highest = max(i for i, mhz in enumerate(clocks) if limit.allows(low_w + slope * (mhz - clocks[0])))
        level, at = min(at, highest), min(2 * at, highest)
    return level


def _went_on(probe: ProfileCell | AbortedProbe) -> bool:
    return not isinstance(probe, AbortedProbe)


def staircase(
    rows: Sequence[BatchShape],
    climbs: Climbs,
    measure: Measure,
    absent: Absent = (),
    is_kept: Callable[[ProfileCell | AbortedProbe], bool] = _went_on,
    begin: int = 0,
) -> None:
    """Measure only along the cap, once for each of the device's ``climbs``.

    That is from the largest shape to the smallest, up to the first probe above the cap, beginning each shape at the
    last setting at which the one before it stayed under the cap. With n shapes, k settings of a climb and power that
    rises with both, a climb from the lowest setting takes at most n + k - 1 measured cells, and one stopped probe a
    shape. A shape whose first probe is stopped goes down until one is not: readings need not be monotone, and the first
    shape may draw more at ``begin`` than the one that ``quick_start`` probed. A shape that is stopped at every setting
    is given up, and the next begins at the lowest. ``is_kept``: whether the cap is kept at a probe; one that was not
    stopped may be too near to it to tell. ``begin``: level of the climbs to begin at.

    Source: arXiv 2502.18323, section 3 (profiling under a known power limit).
    """
    # A forward pass is as large as its micro-batch, so that decides first which shape draws more.
    shapes = sorted(rows, key=lambda shape: (shape.micro, shape.batch), reverse=True)
    for climb in climbs:
        level = begin  # of the climb
        for shape in list(shapes):
            steps = _present(shape, climb, absent)
            if not steps:
                continue
            levels = [climb.index(knobs) for knobs in steps]
            at = max(0, bisect_right(levels, level) - 1)
            probe = measure(OperatingPoint(shape, steps[at]))
            if _out_of_memory(probe):
                shapes.remove(shape)
                continue
            if not is_kept(probe):
                while at > 0 and not is_kept(probe):
                    at -= 1
                    probe = measure(OperatingPoint(shape, steps[at]))
            else:
                while at + 1 < len(steps) and is_kept(measure(OperatingPoint(shape, steps[at + 1]))):
                    at += 1
            level = levels[at]


def _present(shape: BatchShape, settings: Sequence[Knobs], absent: Absent) -> Sequence[Knobs]:
    return [knobs for knobs in settings if OperatingPoint(shape, knobs) not in absent]


def _out_of_memory(probe: ProfileCell | AbortedProbe) -> bool:
    return isinstance(probe, ProfileCell) and probe.out_of_memory
