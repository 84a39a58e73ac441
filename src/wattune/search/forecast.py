"""Step time and power of all points from those of a few: the terms they are sums of, on a processor with a clock."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from wattune.search.grid import Grid
from wattune.search.observation import DRIFT, PointStats, SensorModel, scatter_w
from wattune.search.surrogate import Array, Surrogate

TIME_SHARES = (0.08, 0.12, 0.05, 0.05, 0.10, 0.60)
"""Prior shares of the time per sample at the first point: per forward pass, per optimizer step and per sample, each
first without and then with a dependence on the clock. A rough guess."""

POWER_SHARES = (0.9, 0.12, 0.08, 0.25, 0.15, 0.05)
"""Prior power at the highest setting, relative to the power at the first point: at rest; a running clock (f, and f^3
for the voltage that rises with it); a busy processor, likewise; the busiest part of long steps above their mean."""

SHARES_SD = 1.5
POWER_SD = (0.3, 1.0, 1.0, 1.0, 1.0, 1.0)
"""Standard deviations of the logarithms of those shares."""

TIME_RESIDUAL, POWER_RESIDUAL = 0.03, 0.02
"""Relative deviation of a board from such a sum: kernels change with the size, caches fill up."""

LENGTHS = (1.0, 2.0, 2.0)
"""Correlation lengths of the deviation of the time: in ln(setting), doublings of the micro-batch and of the batch."""

POWER_LENGTHS = (0.4, 2.0, 2.0)
"""The same for the power: in shares of the highest setting (the voltage curve bends), and doublings as above."""

BENDING = 0.3
"""Drift of the slope of ln(power) over the whole range of settings, since voltage curves bend. A tenth of the range
beyond what was measured adds 0.5 % of standard deviation, three tenths add 3 %."""

KNOWN_SHARES = (0.9, 0.1, 0.12, 0.4, 0.05)
KNOWN_SD = (0.3, 1.0, 1.0, 1.0, 1.0)
KNOWN_BENDING = 0.05
"""The same if the voltage at each clock is known: at rest; leakage (V^3); a running clock and a busy processor
(V^2 f); the busiest part of long steps. Little of the bending remains."""

RISE_S = 0.2
"""Steps of this length draw half of the power that long ones add (they leave gaps that no count of work shows)."""

ABOVE, ABOVE_SD = 0.01, 0.015
"""ln(power of a point over its first reading above the cap): mean and standard deviation. That reading came early and
still averages over some of the power before it."""


class Forecast:
    """Forecast for all points of a grid: ``time`` and ``power`` hold mean and sd of ln(step time) and ln(power).

    The power is the highest that a sensor without noise would read. ``volts`` (points,): the voltage relative to the
    highest, None if it is not known.
    """

    def __init__(self, grid: Grid, readings: SensorModel, volts: Array | None = None):
        self._batch, self._micro, self._clock = grid.batch, grid.micro, grid.setting / grid.setting.max()
        logs = np.stack([np.log(self._clock), np.log2(self._micro), np.log2(self._batch)], axis=1)
        self._places = logs / np.array(LENGTHS)
        logs = np.stack([self._clock, np.log2(self._micro), np.log2(self._batch)], axis=1)
        self._power_places = logs / np.array(POWER_LENGTHS)
        self._readings = readings
        self._volts = volts
        self.time: Surrogate
        self.power: Surrogate
        self.scatter_w = readings.scatter_w
        self.power_noise: Array

    def fit(self, seen: Mapping[int, PointStats], above: Mapping[int, float]) -> None:
        """Fit to the measured points (at least one, in order of measurement) and readings above the cap at others."""
        first = next(iter(seen))
        one, clock, micro, batch = np.ones_like(self._clock), self._clock, self._micro, self._batch
        at = np.array(sorted(seen), dtype=np.intp)
        known = [seen[index] for index in at]
        terms = np.stack([1 / micro, 1 / (micro * clock), 1 / batch, 1 / (batch * clock), one, 1 / clock], axis=1)
        first_s = seen[first].step_s / batch[first]
        shares = np.log(np.array(TIME_SHARES) * first_s)
        sd = np.full(len(TIME_SHARES), SHARES_SD)
        self.time = Surrogate(terms / terms[first], shares, sd, self._places, TIME_RESIDUAL)
        logs = np.log([one.step_s for one in known]) - np.log(batch[at])
        self.time.fit(at, logs, np.array([one.step_sd() for one in known]))
        self.time.mean = self.time.mean + np.log(batch)  # of a step again, not of a sample

        step_s = np.exp(self.time.mean)
        idle = self.time.shares[:, 0] + self.time.shares[:, 2]
        busy = (1 - idle) * step_s / (step_s + RISE_S) * clock
        uneven = step_s**2 / (step_s**2 + self._readings.window_s**2) * clock
        if self._volts is None:
            terms = np.stack([one, clock, clock**3, busy, busy * clock**2, uneven], axis=1)
            means, sds, bending = np.array(POWER_SHARES), np.array(POWER_SD), BENDING
        else:
            square = self._volts**2
            terms = np.stack([one, self._volts**3, square * clock, square * busy, square * uneven], axis=1)
            means, sds, bending = np.array(KNOWN_SHARES), np.array(KNOWN_SD), KNOWN_BENDING
        rest = np.log(means * seen[first].power_mean_w)
        bends = bending ** (2 / 3) * clock
        self.power = Surrogate(terms, rest, sds, self._power_places, POWER_RESIDUAL, bends)
        self.scatter_w = scatter_w(self._readings, known)
        highest = [one.highest_w(self._readings, self.scatter_w) for one in known]
        logs = np.log([w for w, _ in highest] + [w * math.exp(ABOVE) for w in above.values()])
        errors = np.array([sd / w for w, sd in highest] + [ABOVE_SD] * len(above))
        self.power.fit(np.append(at, np.array(list(above), dtype=np.intp)), logs, errors)
        # The error of the power after a probe of about three windows.
        self.power_noise = np.hypot(DRIFT, 0.6 * self.scatter_w / np.exp(self.power.mean))
