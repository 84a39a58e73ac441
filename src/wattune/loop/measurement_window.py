"""Measurement of steps at one point: their times, and the readings of the power sensor meanwhile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np

from wattune.cap import SensorLimit
from wattune.devices.meter import highest_window
from wattune.point import Knobs, OperatingPoint
from wattune.program.rounds import GAP, Interval, median_s
from wattune.records import ProfileCell

UNEVEN = 0.15
"""Standard deviation of steps, relative, from which on as many are measured as fix their mean to ``FIXED``."""

FIXED = 0.02


class Measured(NamedTuple):
    """Measurements at one point. ``step_sd_s``: standard deviation of a step's time, None for a single interval;
    ``seconds``: time measured, without gaps; ``readings_w``: readings of steps alone."""

    step_s: float
    step_sd_s: float | None
    steps: int
    seconds: float
    readings_w: Sequence[float]

    @property
    def uneven(self) -> float:
        """Standard deviation of a step's time, relative to its mean."""
        return 0.0 if self.step_sd_s is None else self.step_sd_s / self.step_s

    @property
    def needed(self) -> int:
        """Least number of steps that fix the mean."""
        return 0 if self.uneven <= UNEVEN else math.ceil((self.uneven / FIXED) ** 2)

    def cell(self, place: OperatingPoint, limit: SensorLimit) -> ProfileCell:
        """The same as the cell of a profile. ``limit``: that it was measured under."""
        readings_w = self.readings_w
        return ProfileCell(
            **place.fields(),
            step_s=self.step_s,
            step_std_s=self.step_sd_s,
            power_mean_w=mean(readings_w),
            power_std_w=stdev(readings_w) if len(readings_w) > 1 else None,
            power_peak_w=max(readings_w),
            power_window_w=highest_window(readings_w, limit),
            steps=self.steps,
        )


class MeasurementWindow:
    """Steps and readings from ``begun_s`` on, in the device's time, while the board is at one point.

    They count once the sensor has settled, ``settle_s`` after the begin and after each pause. Intervals of more than
    ``GAP`` times the median step are gaps (an evaluation, a checkpoint, a first compilation), which do not count.
    """

    def __init__(self, begun_s: float, settle_s: float):
        self.begun_s = begun_s
        self._settle_s = settle_s
        self._since_s: float | None = None
        self._last_s = begun_s
        self._before: list[tuple[float, float]] = []  # begin and end of what was measured before each pause
        self._before_s = 0.0  # how long all of that took: there may be very many pauses
        self._intervals: list[Interval] = []
        self._readings: list[tuple[float, float]] = []  # on real time they come from the sampling thread

    @property
    def has_begun(self) -> bool:
        """True if the sensor has settled, so that steps count."""
        return self._since_s is not None

    @property
    def elapsed_s(self) -> float:
        """Seconds that were measured, with gaps."""
        return self._before_s + (0.0 if self._since_s is None else self._last_s - self._since_s)

    def reading(self, now_s: float, power_w: float) -> None:
        """Add a reading of the power sensor."""
        self._readings.append((now_s, power_w))

    def step(self, now_s: float, count: int = 1, seconds: float | None = None) -> None:
        """Add ``count`` steps that took ``seconds`` and ended at ``now_s``.

        ``count`` 0: the time of what has ended does not count. ``seconds`` None: all the time since the step before.
        """
        if self._since_s is None:
            if now_s - self.begun_s >= self._settle_s:
                self._since_s = self._last_s = now_s
            return
        if count:
            self._intervals.append(Interval(self._last_s if seconds is None else now_s - seconds, now_s, count))
        self._last_s = now_s

    def interrupt(self, now_s: float) -> None:
        """Leave out a pause that ends now."""
        if self._since_s is not None and self._last_s > self._since_s:
            self._before.append((self._since_s, self._last_s))
            self._before_s += self._last_s - self._since_s
        self.begun_s, self._since_s = now_s, None

    def is_gap(self, now_s: float) -> bool:
        """True if no step has ended for longer than a step takes."""
        return bool(self._intervals) and now_s - self._last_s > GAP * median_s(self._intervals)

    def measured(self) -> Measured | None:
        """Figures of all steps outside gaps; None before there are any."""
        if not self._intervals:
            return None
        longest_s = GAP * median_s(self._intervals)
        usual = [one for one in self._intervals if one.step_s <= longest_s]
        gaps = [one for one in self._intervals if one.step_s > longest_s]
        steps = sum(one.rounds for one in usual)
        step_s = sum(one.end_s - one.begin_s for one in usual) / steps
        # The mean of n steps varies by 1 / n of what one of them does.
        squares = sum(one.rounds * (one.step_s - step_s) ** 2 for one in usual)
        step_sd_s = math.sqrt(squares / (len(usual) - 1)) if len(usual) > 1 else None
        stretches = self._before if self._since_s is None else [*self._before, (self._since_s, self._last_s)]
        readings_w = [
            power_w
            for time_s, power_w in [*self._readings]
            if any(begin_s <= time_s <= end_s for begin_s, end_s in stretches)
            and not any(gap.begin_s < time_s < gap.end_s + self._settle_s for gap in gaps)
        ]
        seconds = self.elapsed_s - sum(gap.end_s - gap.begin_s for gap in gaps)
        return Measured(step_s, step_sd_s, steps, seconds, readings_w)


def ratio(cells: Mapping[OperatingPoint, ProfileCell], low: Knobs, high: Knobs) -> float | None:
    """Power at ``high`` over power at ``low``, the largest of all rows; None if that was not measured, or if settings
    differ in another knob than the first."""
    others = list(low.items())[1:]
    if list(high.items())[1:] != others:
        return None
    ratios = []
    for row in {point.shape for point in cells}:
        highest = [
            (point.knobs.first, cell.highest_w)
            for point, cell in cells.items()
            if point.shape == row and list(point.knobs.items())[1:] == others
        ]
        measured = [(setting, power_w) for setting, power_w in highest if setting is not None and power_w is not None]
        low_w, high_w = _interpolated(measured, low.first or 1.0), _interpolated(measured, high.first or 1.0)
        if low_w is not None and high_w is not None:
            ratios.append(high_w / low_w)
    return max(ratios, default=None)


def _interpolated(points: Sequence[tuple[float, float]], setting: float) -> float | None:
    """Power at a setting on straight lines between measured ones (setting, watts), in logarithms; None beyond them."""
    if not points or not min(points)[0] <= setting <= max(points)[0]:
        return None
    settings, watts = np.log(sorted(points)).T
    return math.exp(np.interp(math.log(setting), settings, watts))
