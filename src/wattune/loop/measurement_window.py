"""Measurement of training at one point: the times of its steps, and the readings of the power sensor meanwhile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev

import numpy as np

from wattune.cap import SensorLimit
from wattune.devices.meter import highest_window
from wattune.point import Knobs, OperatingPoint
from wattune.records import ProfileCell


class MeasurementWindow:
    """Steps at one point from ``begun_s`` on, in the device's time, and the readings meanwhile. Both count once the
    sensor has settled.

    ``since_s`` is that time, None before it; ``elapsed_s`` the time measured since then, without pauses, after each of
    which the sensor has to settle again.
    """

    def __init__(self, begun_s: float):
        self.begun_s = begun_s
        self.since_s: float | None = None
        self.times_s: list[float] = []
        self._latest_s = begun_s
        self._before: list[tuple[float, float]] = []  # begin and end of what was measured before each pause
        self._readings: list[tuple[float, float]] = []  # on real time they come from the sampling thread

    @property
    def _measured(self) -> list[tuple[float, float]]:
        return self._before if self.since_s is None else [*self._before, (self.since_s, self._latest_s)]

    @property
    def elapsed_s(self) -> float:
        """Seconds that were measured."""
        return sum(end_s - begin_s for begin_s, end_s in self._measured)

    @property
    def readings_w(self) -> list[float]:
        """Readings in the time that was measured, in watts."""
        measured = self._measured
        return [power_w for at_s, power_w in [*self._readings] if any(a <= at_s <= b for a, b in measured)]

    def reading(self, now_s: float, power_w: float) -> None:
        """Add a reading of the power sensor."""
        if self.since_s is not None:
            self._readings.append((now_s, power_w))

    def step(self, now_s: float, seconds: float | None, settle_s: float) -> None:
        """Add a step that ended now; ``seconds`` is None if its time does not count."""
        self._latest_s = now_s
        if self.since_s is None:
            self.since_s = now_s if now_s - self.begun_s >= settle_s else None
        elif seconds is not None:
            self.times_s.append(seconds)

    def interrupt(self, now_s: float) -> None:
        """Leave out a pause of training that ends now."""
        self._before = self._measured
        self.begun_s, self.since_s = now_s, None


def cell(
    place: OperatingPoint, times_s: Sequence[float], readings_w: Sequence[float], limit: SensorLimit
) -> ProfileCell:
    """The cell of a profile from the steps and readings at a point; ``limit``: that they were measured under."""
    return ProfileCell(
        **place.fields(),
        step_s=mean(times_s),
        step_std_s=stdev(times_s) if len(times_s) > 1 else None,
        power_mean_w=mean(readings_w),
        power_std_w=stdev(readings_w) if len(readings_w) > 1 else None,
        power_peak_w=max(readings_w),
        power_window_w=highest_window(readings_w, limit),
        steps=len(times_s),
    )


def ratio(cells: Mapping[OperatingPoint, ProfileCell], low: Knobs, high: Knobs) -> float | None:
    """Power at ``high`` over power at ``low``, the largest of all rows; None if that was not measured, or if settings
    differ in another knob than the first."""
    others = list(low.items())[1:]
    if list(high.items())[1:] != others:
        return None
    ratios = []
    for row in {point.shape for point in cells}:
        peaks = [
            (point.knobs.first, cell.power_peak_w)
            for point, cell in cells.items()
            if point.shape == row and list(point.knobs.items())[1:] == others
        ]
        measured = [(setting, peak_w) for setting, peak_w in peaks if setting is not None and peak_w is not None]
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
