"""Step time and power of all points from those of a few: the terms they are sums of, on processors with clocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import Final

import numpy as np

from wattune.search.grid import Grid
from wattune.search.observation import DRIFT, PointStats, SensorModel, scatter_w
from wattune.search.surrogate import Array, Mixture, PNorm, RowAndStepResidual, SmoothResidual

TIME_SHARES = {
    "": (0.08, 0.05, 0.10),
    "clock_mhz": (0.12, 0.05, 0.60),
    "memory_clock_mhz": (0.03, 0.03, 0.40),
    "cpu_clock_mhz": (0.10, 0.02, 0.05),
    "power_limit_w": (0.03, 0.03, 0.40),
}
"""Prior shares of the time per sample that depend on no clock, and on each: per forward pass, per optimizer step and
per sample. Of one clock at the first point, of several at the highest of all. A rough guess."""

FORECAST: Final = frozenset(TIME_SHARES) - {""}
"""Knobs that time and power can be forecast along where a device has several."""

OVERLAPS = {1.0: 0.2, 2.0: 0.5, 3.5: 0.3}
"""Exponents of the norm by which a kernel's computing and its memory traffic add up, since they overlap, and how
probable each is. 1: one after the other."""

HOSTS = {(1.0, 1.0): 0.2, (5.0, 0.5): 0.4, (5.0, 2.5): 0.4}
"""The same exponent for the device's time and the host's, with a factor on the host's prior shares. A host that runs
ahead hides behind the device's time (nearly the longer of the two counts), so that a small share does not show whether
a larger one would fit: both are tried."""

HOST_SD = 0.8
"""Standard deviation of the logarithm of a host's share."""

POWER_SHARES = (0.9, 0.1, 0.12, 0.4, 0.05)
"""Prior power at the highest setting, relative to the power at the first point: at rest; leakage (V^3); a running clock
and a busy processor (V^2 f); the busiest part of long steps above their mean (V^2 f)."""

SHARES_AMONG_SEVERAL = (0.5, 0.1, 0.3, 1.0, 0.05)
"""The same where other clocks may be set as well, which are then in the middle at the first point."""

OTHER_SHARES = {"memory_clock_mhz": (0.4, 0.8), "cpu_clock_mhz": (0.2, 0.2), "power_limit_w": (0.4, 0.8)}
"""Prior power of each other clock at its highest: of running, and of being busy. A power limit counts as a clock, since
a model that saturates below the limit forecast recorded cards worse."""

AT_REST, LEAST_AT_REST = 0.3, 0.02
"""Share of the power at the highest setting that is drawn at rest: if that is not known, and at least."""

CPU_SWITCHING = 0.4, 0.6
"""Switching power of a CPU over its clock: a linear and a cubic share, for the voltage that rises with it."""

SHARES_SD = 1.5
REST_SD, POWER_SD = 0.3, 1.0
"""Standard deviations of the logarithms of those shares: of the times, of the power at rest, and of all other power."""

VOLTAGES = (*product((0.6, 0.75, 0.88), (0.0, 0.3, 0.5, 0.7)), (1.0, 0.0))
"""Shapes of an unknown voltage: the lowest, as a share of the highest, and the share of the highest clock up to which
it stays there; from there on it rises in a straight line. The last one never changes. Five shapes were as good on the
recorded workload that the search was tuned on, and worse on those that judge it."""

TIME_RESIDUAL = 0.03
"""Relative deviation of a board from such a sum: kernels change with the size, caches fill up."""

STEP_NOISES = {0.0: 0.5, 0.02: 0.5}
"""Standard deviations of ln(measured step time) besides what the number of steps leaves, where several clocks are set,
and how probable each is. Many points differ by less than that, and the fastest of them is likely a lucky one."""

LENGTH, SIZE_LENGTH = 1.0, 2.0
"""Correlation lengths of the deviation of the time: in the logarithm of a knob, and in doublings of a size."""

ROW_RESIDUAL, STEP_RESIDUAL = 0.08, 0.07
"""The same for the power that is not drawn at rest: of one row alone, since kernels of neighbouring batch sizes may
draw 10 % more or less; of all rows, over the whole range of a clock, since voltages and memory clocks have steps."""

OTHER_STEPS = {"memory_clock_mhz": 0.25, "cpu_clock_mhz": 0.1, "power_limit_w": 0.25}
"""The same as ``STEP_RESIDUAL`` along other clocks: a memory's power has a step at nearly every one of its clocks."""

RESIDUAL_FACTORS = {1.0: 0.9, 3.0: 0.1}
"""Factors on all of these, and how probable each is before anything is measured: few boards are much less regular."""

RISE_S = 0.2
"""Steps of this length draw half of the power that long ones add (they leave gaps that no count of work shows)."""

ABOVE, ABOVE_SD = 0.01, 0.015
"""ln(power of a point over its first reading above the cap): mean and standard deviation. That reading came early and
still averages over some of the power before it."""


class Forecast:
    """Forecast for all points of a grid: ``time`` and ``power`` hold mean and sd of ln(step time) and ln(power).

    The power is the highest that a sensor without noise would read. ``stopped``: ln(power of a point over what stopped
    its probe), mean and sd. ``windows``: of the sensor that a probe measures for; ``power_noise`` (points,): the error
    of ln(power) after one. ``starts_high``: the first probe is at the highest setting, as it is without a cap.
    ``rest_w``: power at rest, used then.
    """

    def __init__(
        self,
        grid: Grid,
        readings: SensorModel,
        *,
        stopped: tuple[float, float] = (ABOVE, ABOVE_SD),
        windows: int,
        starts_high: bool = False,
        rest_w: float | None = None,
    ):
        self._batch, self._micro = grid.batch, grid.micro
        self._clocks = grid.value / grid.value.max(axis=0)
        # The first knob is the clock of the processor; without clocks it is a power limit, or 1.
        self._clock = self._clocks[:, 0]
        self._others = dict(zip(grid.names[1:], self._clocks[:, 1:].T, strict=True))
        sizes = np.log2(np.stack([self._micro, self._batch], axis=1)) / SIZE_LENGTH
        self._places = np.concatenate([np.log(grid.value) / LENGTH, sizes], axis=1)
        self._readings = readings
        self._row = grid.row
        self._volts = [
            floor + (1 - floor) * np.clip((self._clock - bend) / (1 - bend), 0.0, 1.0) for floor, bend in VOLTAGES
        ]
        self._stopped, self._stopped_sd = stopped
        self._windows, self._starts_high, self._rest_w = windows, starts_high, rest_w
        self.time: Mixture
        self.power: Mixture
        self.scatter_w = readings.scatter_w
        self.power_noise: Array

    def fit(self, seen: Mapping[int, PointStats], above: Mapping[int, float]) -> None:
        """Fit to the measured points (at least one, in order of measurement) and readings above the cap at others."""
        first, at = next(iter(seen)), np.array(sorted(seen), dtype=np.intp)
        known = [seen[index] for index in at]
        self.time = self._time_model(first, seen[first].step_s)
        logs = np.log([one.step_s for one in known]) - np.log(self._batch[at])
        self.time.fit(at, logs, np.array([one.step_sd() for one in known]))
        self.time.mean = self.time.mean + np.log(self._batch)  # of a step again, not of a sample

        self.scatter_w = scatter_w(self._readings, known)
        highest = [one.highest_w(self._readings, self.scatter_w) for one in known]
        logs = np.log([w for w, _ in highest] + [w * math.exp(self._stopped) for w in above.values()])
        errors = np.array([sd / w for w, sd in highest] + [self._stopped_sd] * len(above))
        at = np.append(at, np.array(list(above), dtype=np.intp))
        first_w = seen[first].power_mean_w
        terms = self._power_terms()
        # Any shape shows well enough how much of the power each clock decides: the residuals are shares of that.
        rough = self._power_model(terms[:1], first, first_w, self._power_residual(self._clocks), {1.0: 1.0})
        rough.fit(at, logs, errors)
        own = len(POWER_SHARES)
        moving = [rough.shares[:, 1:own].sum(axis=1)]
        moving += [rough.shares[:, k : k + 2].sum(axis=1) for k in range(own, rough.shares.shape[1], 2)]
        residual = self._power_residual(np.stack(moving, axis=1))
        self.power = self._power_model(terms, first, first_w, residual, RESIDUAL_FACTORS)
        self.power.fit(at, logs, errors)
        self.power_noise = np.hypot(DRIFT, self.scatter_w / math.sqrt(self._windows) / np.exp(self.power.mean))

    def _time_model(self, first: int, step_s: float) -> Mixture:
        counts = np.stack([1 / self._micro, 1 / self._batch, np.ones_like(self._batch)], axis=1)
        clocks = {"": np.ones_like(self._clock), "clock_mhz": self._clock, **self._others}
        terms = np.concatenate([counts / clock[:, None] for clock in clocks.values()], axis=1)
        shares = np.concatenate([TIME_SHARES[name] for name in clocks])
        groups = np.repeat(np.arange(len(clocks)), counts.shape[1])
        if not self._others:
            means = np.log(shares * step_s / self._batch[first] / terms[first])
            residual = SmoothResidual(self._places, TIME_RESIDUAL)
            return Mixture(terms[None], means[None], np.full(len(shares), SHARES_SD), residual)
        is_host = np.repeat([name == "cpu_clock_mhz" for name in clocks], counts.shape[1])
        kinds = list(product(OVERLAPS.items(), HOSTS.items(), STEP_NOISES.items()))
        p, q, host, noise_sd, prior = np.array(
            [(p, q, host, noise_sd, a * b * c) for (p, a), ((q, host), b), (noise_sd, c) in kinds]
        ).T
        norm = PNorm(groups, p, q, outer=int(is_host.any()))
        priors = shares * np.where(is_host, host[:, None], 1.0)
        at_first = np.exp(norm.sum(terms[first] * priors[:, None, :])[0])
        return Mixture(
            terms[None],
            np.log(priors * step_s / self._batch[first] / at_first),
            np.where(is_host, HOST_SD, SHARES_SD),
            SmoothResidual(self._places, TIME_RESIDUAL),
            norm,
            noise_sd=noise_sd,
            prior=prior,
        )

    def _power_terms(self) -> Array:
        """Terms of the power (shapes, points, terms), for each shape of the voltage."""
        step_s, parts, shares = np.exp(self.time.mean), self.time.parts, self.time.shares
        # Of a single clock, what takes time per sample whatever the clock is counts as well: waiting for memory.
        busy = parts[:, 1] if self._others else 1 - shares[:, 0] - shares[:, 1]
        busy = busy * step_s / (step_s + RISE_S) * self._clock
        uneven = step_s**2 / (step_s**2 + self._readings.window_s**2) * self._clock
        switching = np.stack([self._clock, busy, uneven], axis=1)
        others = []
        for group, (name, clock) in enumerate(self._others.items(), start=2):
            linear, cubic = CPU_SWITCHING if name == "cpu_clock_mhz" else (1.0, 0.0)
            running = linear * clock + cubic * clock**3
            others += [running, running * parts[:, group]]
        columns = [
            np.stack([np.ones_like(step_s), volts**3, *(volts[:, None] ** 2 * switching).T, *others], axis=1)
            for volts in self._volts
        ]
        return np.stack(columns)

    def _power_residual(self, moving: Array) -> RowAndStepResidual:
        """``moving`` (points, knobs): shares of the power that each clock decides."""
        steps = np.array([STEP_RESIDUAL, *(OTHER_STEPS[name] for name in self._others)])
        row_sd = ROW_RESIDUAL * moving.sum(axis=1) * (self._row.max() > 0)
        return RowAndStepResidual(self._row, row_sd, (steps * moving) ** 2 * self._clocks)

    def _power_model(
        self, terms: Array, first: int, first_w: float, residual: RowAndStepResidual, factors: Mapping[float, float]
    ) -> Mixture:
        """A model for each shape of the voltage in ``terms`` and each factor on the residual."""
        shares = np.concatenate(
            [SHARES_AMONG_SEVERAL if self._others else POWER_SHARES, *(OTHER_SHARES[name] for name in self._others)]
        )
        sd = np.array([REST_SD] + [POWER_SD] * (len(shares) - 1))
        if self._starts_high:  # where little of the power is rest
            shares, sd[0] = shares / terms[0, first].dot(shares), POWER_SD
            shares[0] = AT_REST if self._rest_w is None else max(self._rest_w / first_w, LEAST_AT_REST)
        scale, prior = np.repeat(np.array(list(factors.items())), len(terms), axis=0).T
        mean = np.broadcast_to(np.log(shares * first_w), (len(scale), len(shares)))
        return Mixture(np.concatenate([terms] * len(factors)), mean, sd, residual, scale=scale**2, prior=prior)
