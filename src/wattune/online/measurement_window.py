"""A stretch of training at one point: its steps' times, and how long the sensor showed nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import mean, stdev

from wattune.point import OperatingPoint
from wattune.records import ProfileCell
from wattune.search.search import Point


class MeasurementWindow:
    """Steps at one point from ``begun_s`` on, in the device's time; what the sensor shows counts once it has settled.

    ``since_s`` is when that was, None before; ``elapsed_s`` how much was seen since, without the time of pauses, after
    which it has to settle again. ``pure`` readings of the keeper are of training alone.
    """

    def __init__(self, begun_s: float):
        self.begun_s = begun_s
        self.since_s: float | None = None
        self.times_s: list[float] = []
        self.pure = 0
        self.is_new = False
        """Whether the sensor has settled with the last step."""
        self._before_s = 0.0
        self._latest_s = begun_s

    @property
    def elapsed_s(self) -> float:
        """Seconds that were seen."""
        return self._before_s + (0.0 if self.since_s is None else self._latest_s - self.since_s)

    def step(self, now_s: float, seconds: float | None, settle_s: float) -> bool:
        """A step ended, and took so long if its time counts; whether the sensor has settled."""
        self._latest_s = now_s
        self.is_new = self.since_s is None and now_s - self.begun_s >= settle_s
        if self.is_new:
            self.since_s = now_s
        elif self.since_s is not None and seconds is not None:
            self.times_s.append(seconds)
        return self.since_s is not None

    def interrupt(self, now_s: float) -> None:
        """Training stood still until now."""
        self._before_s = self.elapsed_s
        self.begun_s, self.since_s = now_s, None


def cell(place: OperatingPoint, times_s: Sequence[float], readings_w: Sequence[float]) -> ProfileCell:
    """What was seen at a point, as profiles write it."""
    return ProfileCell(
        **place.fields(),
        step_s=mean(times_s),
        step_std_s=stdev(times_s) if len(times_s) > 1 else None,
        power_mean_w=mean(readings_w),
        power_std_w=stdev(readings_w) if len(readings_w) > 1 else None,
        power_peak_w=max(readings_w),
        steps=len(times_s),
    )


def ratio(cells: Mapping[Point, ProfileCell], low: float, high: float) -> float | None:
    """Power at one setting over that at a lower one, the largest of all rows; None where training has not shown it."""
    ratios = []
    for row in {point.row for point in cells}:
        peaks = [(p.setting, c.power_peak_w) for p, c in cells.items() if p.row == row]
        known = [(setting, peak_w) for setting, peak_w in peaks if setting is not None and peak_w is not None]
        low_w, high_w = _interpolated(known, low), _interpolated(known, high)
        if low_w is not None and high_w is not None:
            ratios.append(high_w / low_w)
    return max(ratios, default=None)


def _interpolated(points: Sequence[tuple[float, float]], setting: float) -> float | None:
    """Power at a setting on straight lines between measured ones (setting, watts), in logarithms; None beyond them."""
    known = sorted(points)
    for (low, low_w), (high, high_w) in pairwise(known):
        if low <= setting <= high:
            share = (math.log(setting) - math.log(low)) / (math.log(high) - math.log(low))
            return math.exp(math.log(low_w) + share * (math.log(high_w) - math.log(low_w)))
    return known[0][1] if known and known[0][0] == setting else None
