"""Measurements at one point, and what they say about the highest reading to expect there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import Any

from scipy.special import ndtri

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


@dataclass(frozen=True)
class SensorModel:
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
    def of(cls, readings: SensorModel, step_s: float, mean_w: float, peak_w: float, seconds: float) -> PointStats:
        """The figures of one stretch."""
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

    def state_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return dict(vars(self))


def scatter_w(readings: SensorModel, seen: list[PointStats]) -> float:
    """Standard deviation of one reading: the sensor's if known, else from the highest readings above their means."""
    if readings.noise_w > 0 or not seen:
        return readings.scatter_w
    found = [min(one.rise_w / one.rank, NOISE_MOST * one.power_mean_w) for one in seen if one.rank > 0]
    return max(readings.scatter_w, median(found)) if found else readings.scatter_w
