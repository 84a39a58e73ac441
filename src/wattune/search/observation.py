"""Measurements at one point, and what they say about the highest reading to expect there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from scipy.special import ndtri

from wattune.records import ProfileCell, ProfileTable, ReferencePower

DRIFT = 0.002
"""Standard deviation of step time and power, relative, that measuring for longer does not reduce."""

STEP_SD = 0.02
"""Standard deviation of the time of one step, relative, for the error of a mean over some of them."""

NOISE_LIMIT = 3.0
"""Room left between a point's power and the cap, in standard deviations of the sensor's noise."""

MAX_SD = 0.6
"""Standard deviation of the highest of five to twenty normal numbers."""

NOISE_MOST = 0.03
"""Largest scatter of readings, relative, that is attributed to the sensor: the rest is the power itself."""


PICKED = 1.96
"""Standard deviations below a cap on a mean at which a point may be chosen: 39 in 40 are below it."""


class SensorModel(NamedTuple):
    """Figures of the sensor: noise (one standard deviation, 0: unknown) and resolution in watts, the time that a
    reading averages over, and the time from one fresh reading to the next."""

    noise_w: float = 0.0
    resolution_w: float = 0.0
    window_s: float = 0.5
    period_s: float = 0.1

    @property
    def scatter_w(self) -> float:
        """Standard deviation of one reading, rounding included."""
        return math.hypot(self.noise_w, self.resolution_w / math.sqrt(12))

    def expected_max(self, seconds: float) -> float:
        """Expected highest of the readings in ``seconds``, in standard deviations above their mean.

        Source: Blom 1958, Statistical Estimates and Transformed Beta-Variables (the rank's normal score).
        """
        count = max(1.0, seconds / max(self.period_s, 1e-3))
        return min(NOISE_LIMIT, float(ndtri((count - 0.375) / (count + 0.25)))) if count > 1 else 0.0


class Stretch(NamedTuple):
    """Figures of a stretch of training at one point.

    ``step_s``: mean step time; ``power_mean_w``, ``power_peak_w``: mean and highest reading; ``seconds``: its length.
    """

    step_s: float
    power_mean_w: float
    power_peak_w: float
    seconds: float


@dataclass
class PointStats:
    """Means over all measurements at one point, the highest reading, their total time and the number of stretches.

    ``rise_w``: how far the highest reading of a stretch was above its mean; ``rank``: how far the noise alone is
    expected to bring it there, in standard deviations. Both are means over the stretches.
    """

    step_s: float
    power_mean_w: float
    power_peak_w: float
    seconds: float
    times: int
    rise_w: float
    rank: float

    @classmethod
    def of(cls, readings: SensorModel, stretch: Stretch) -> PointStats:
        """The figures of one stretch."""
        step_s, mean_w, peak_w, seconds = stretch
        # When steps are uneven, only some readings fall on their busiest part: fewer of them can be the highest.
        rank = readings.expected_max(seconds / 2)
        return cls(step_s, mean_w, peak_w, seconds, 1, peak_w - mean_w, rank)

    def add(self, other: PointStats) -> None:
        """Add another stretch at the same point."""
        share = other.seconds / (self.seconds + other.seconds)
        self.step_s += share * (other.step_s - self.step_s)
        self.power_mean_w += share * (other.power_mean_w - self.power_mean_w)
        self.power_peak_w = max(self.power_peak_w, other.power_peak_w)
        self.seconds += other.seconds
        self.times += other.times
        share = other.times / self.times
        self.rise_w += share * (other.rise_w - self.rise_w)
        self.rank += share * (other.rank - self.rank)

    def step_sd(self) -> float:
        """Standard deviation of ln(step time)."""
        return math.hypot(DRIFT, STEP_SD / math.sqrt(max(1.0, self.seconds / self.step_s)))

    def highest_w(self, readings: SensorModel, scatter_w: float) -> tuple[float, float]:
        """The highest that a sensor without noise would read here, and its standard deviation, in watts.

        That is the mean power, unless steps are longer than the sensor's window: their busiest part is then above it.
        """
        excess_w = max(0.0, self.rise_w - self.rank * scatter_w)
        uneven = min(1.0, excess_w / scatter_w) if scatter_w > 0 else 1.0
        count = max(1.0, self.seconds / max(readings.period_s, readings.window_s))
        rise_sd_w = MAX_SD * uneven * scatter_w / math.sqrt(self.times)
        sd_w = math.hypot(scatter_w / math.sqrt(count), rise_sd_w, DRIFT * self.power_mean_w)
        highest_w = max(self.power_mean_w + uneven * excess_w, self.power_peak_w - NOISE_LIMIT * scatter_w)
        return highest_w, sd_w


def scatter_w(readings: SensorModel, seen: list[PointStats]) -> float:
    """Standard deviation of one reading: the sensor's if known, else from the highest readings above their means."""
    if readings.noise_w > 0 or not seen:
        return readings.scatter_w
    found = [min(one.rise_w / one.rank, NOISE_MOST * one.power_mean_w) for one in seen if one.rank > 0]
    return max(readings.scatter_w, median(found)) if found else readings.scatter_w


def windowed(readings: SensorModel, window_s: float, noise_w: float) -> SensorModel:
    """A sensor that averages over a cap's window, made of the readings of one with ``noise_w`` watts of noise.

    Windows that begin half a window apart are taken as independent, for the highest of them.
    """
    apart_s = max(readings.window_s, readings.period_s)
    return SensorModel(noise_w / math.sqrt(max(1.0, window_s / apart_s)), 0.0, window_s, window_s / 4)


def highest_power(
    cell: ProfileCell | ReferencePower, averaging_s: float, window_s: float | None
) -> tuple[float, float]:
    """The highest power of a measured cell that a sensor without noise would read, and its standard deviation (watts).

    ``averaging_s``: time that the sensor averages over; ``window_s``: that of the cap which the cell was measured
    under, None if only single readings are known. Noise of unknown size is taken as ``NOISE_MOST`` of the power.
    """
    assert cell.step_s is not None  # of a measured cell
    assert cell.power_mean_w is not None
    assert cell.power_peak_w is not None
    mean_w, peak_w, readings = cell.power_mean_w, cell.power_peak_w, SensorModel(window_s=averaging_s)
    scatter_w = NOISE_MOST * mean_w if cell.power_std_w is None else min(cell.power_std_w, NOISE_MOST * mean_w)
    if window_s is not None and cell.power_window_w is not None:
        readings, peak_w = windowed(readings, window_s, scatter_w), cell.power_window_w
        scatter_w = readings.noise_w
    stats = PointStats.of(readings, Stretch(cell.step_s, mean_w, peak_w, cell.step_s * (cell.steps or 1)))
    return stats.highest_w(readings, scatter_w)


def highest_later(
    cell: ProfileCell | ReferencePower, averaging_s: float, measured_window_s: float | None, window_s: float | None
) -> float:
    """The highest power, in the terms of a cap over ``window_s`` seconds, that hours of training at a cell may show.

    The arguments are those of ``capped_power``. The noise of a sensor adds ``NOISE_LIMIT`` standard deviations; no mean
    over a window is above the highest reading.
    """
    highest_w, sd_w = highest_power(cell, averaging_s, measured_window_s if window_s is not None else None)
    assert cell.power_mean_w is not None  # of a measured cell
    noise_w = min(cell.power_std_w or 0.0, NOISE_MOST * cell.power_mean_w)
    if window_s is None:
        return highest_w + PICKED * sd_w + NOISE_LIMIT * noise_w
    noise_w = windowed(SensorModel(window_s=averaging_s), window_s, noise_w).noise_w
    return min(cell.power_peak_w or math.inf, highest_w + PICKED * sd_w + NOISE_LIMIT * noise_w)


def capped_power(
    cell: ProfileCell, averaging_s: float | None, measured_window_s: float | None, window_s: float | None
) -> float:
    """The power of a measured cell that is compared with a cap over ``window_s`` seconds, in watts.

    With a window that is the highest mean power over it, with ``PICKED`` standard errors, but no more than the highest
    reading, which no mean is above; else the highest reading.
    ``averaging_s`` of the sensor and ``measured_window_s`` are those of the cell's profile.
    """
    assert cell.power_peak_w is not None  # of a measured cell
    if window_s is None:
        return cell.power_peak_w
    highest_w, sd_w = highest_power(cell, averaging_s or 0.0, measured_window_s)
    return min(cell.power_peak_w, highest_w + PICKED * sd_w)


def capped_powers(profile: ProfileTable, window_s: float | None) -> Callable[[ProfileCell], float]:
    """``capped_power`` of this profile's measured cells, under a cap over ``window_s`` seconds."""
    averaging_s, measured_window_s = profile.sensor_window_s, profile.cap_window_s
    return lambda cell: capped_power(cell, averaging_s, measured_window_s, window_s)
