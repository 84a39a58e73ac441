"""Search for the fastest batch size, micro-batch size and setting while training, with no reading above the cap.

A probe is a stretch of ordinary training at a point, which measures the point's step time and power. It costs as much
time as that point is slower than the best known one. Step time and power of all other points are forecast from the
measured ones (``forecast``). Only points that are forecast to stay under the cap are probed, no more than a bounded
step up in clock; when something faster may lie beyond, the search probes a point that leads there or tells most about
its power (``acquisition``). The search ends when no remaining probe is worth its cost over the rest of the training,
and can begin again when more is known about how many samples each batch size needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from scipy.special import ndtr

from wattune.goal import TIME, Goal
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.sample_efficiency.prior import relative_samples
from wattune.search.acquisition import Alternatives, scenarios, values
from wattune.search.forecast import Forecast
from wattune.search.grid import Grid, Mask, key_of
from wattune.search.observation import DRIFT, PointStats, SensorModel, Stretch, windowed
from wattune.search.policy import SESSION, SearchPolicy
from wattune.search.surrogate import Array

__all__ = ["Search", "SearchPolicy"]

PASSES: Final = 4
"""Least number of steps of a probe, including those before the sensor settles."""

HORIZON_S: Final = 3600.0
"""Time that training is expected to take if the caller does not say."""

STEP: Final = 0.01
"""Step in the logarithm of the power by which a goal's price of a second is differentiated."""

BEYOND: Final = 3.0
"""Standard deviations below the cap for a probe of a profile with a knob above its highest measured value: most probes
above the cap were such steps, since a memory's power has a step at nearly every one of its clocks."""

AGAIN: Final = 0.7
"""The same for a measured point: its own power is known well, and may be just below the cap."""

CLOSE: Final = 4
"""Stretches at the point that draws least, if it is just below the cap."""

PROBES_WORTH: Final = 6.0
"""Probes' time that a search over several clocks has to save over the rest of the training, to go on."""

MOST_LEAST: Final = 0.05
"""Share of the time left that is always worth a probe of several clocks."""

UNLIKE: Final = 1.5
"""Ratio of two settings from which their powers tell how power rises between and above them."""

FAR: Final = 50.0
"""Logarithm of a time slower than any other, for batch sizes without an estimate of the samples that they need."""


class OwnRecipe(NamedTuple):
    """Point of the user's own recipe, and seconds of a step there, measured or forecast."""

    point: OperatingPoint
    step_s: float
    is_measured: bool


class Search:
    """Chooses the point to probe, and the best of the measured points.

    ``start``: the user's own row, or the one nearest to it that fits. ``samples_left``: samples of training to come, at
    the user's batch size; each ``tell`` counts it down, and it may be set. Without a cap (None) the first probe is
    made at the highest setting, else at the lowest. ``noise_w`` to ``settle_s`` describe the sensor: see
    ``wattune.devices.Sensor``; if its noise is unknown (0), it is estimated from the readings. ``cap_window_s``: the
    cap is on the mean power over this time, and the peaks that ``tell`` is given are those of that mean; None: it is on
    every reading. ``manner``: how careful the search is, and what a probe costs. ``goal``: what the best point is;
    with a bound the search is for the fastest point first, which may be needed and which a slowdown is relative to.
    ``rest_w``: power at rest, for a goal above it, and without a cap for the forecast.

    ``reason``: why the search ended; ``worth``: share of the remaining time that further probing may save, as of the
    last ``next``. ``tell`` is for probes, and for any stretch of training at the current point as well: the more
    readings there are, the closer to the cap the search can go.
    """

    def __init__(
        self,
        rows: Sequence[BatchShape],
        settings: Sequence[Knobs],
        *,
        cap_w: float | None,
        start: BatchShape,
        margin_w: float = 0.0,
        samples_left: float | None = None,
        noise_w: float = 0.0,
        resolution_w: float = 0.0,
        window_s: float = 0.5,
        period_s: float = 0.1,
        settle_s: float = 1.0,
        cap_window_s: float | None = None,
        manner: SearchPolicy = SESSION,
        goal: Goal = TIME,
        rest_w: float | None = None,
    ):
        self.start = start
        self.samples_left = samples_left
        self.reason = ""
        self._grid = grid = Grid([*rows, self.start], settings)
        self._goal, self._rest_w = goal, rest_w
        self._manner = manner if cap_window_s is None else manner.windowed(grid.several)
        self._margin_w = margin_w
        self._cap_w = math.inf if cap_w is None else cap_w - margin_w
        self._readings = SensorModel(noise_w, resolution_w, window_s, max(period_s, 0.1))
        if cap_window_s is not None:
            self._readings = windowed(self._readings, cap_window_s, self._readings.scatter_w if noise_w else 0.0)
        self._measuring_s = self._manner.windows * max(window_s, period_s, 0.1) + settle_s
        self._forecast = Forecast(
            grid,
            self._readings,
            stopped=self._manner.above,
            windows=self._manner.windows,
            starts_high=cap_w is None,
            rest_w=rest_w,
        )
        self._seen: dict[int, PointStats] = {}
        self._above: dict[int, float] = {}
        self._open = np.ones(len(grid.points), dtype=bool)
        self.worth = 0.0
        self._is_fitted = False
        self._relative: dict[int, tuple[float, float]] = {}
        self.relative(relative_samples(sorted({r.batch for r in grid.rows}), reference=self.start.batch))

    # --------------------------------------------------------------------------------------------------- measurements

    def relative(self, known: Mapping[int, tuple[float, float]]) -> None:
        """Set the relative samples: batch size -> mean, relative to any one batch size, and the sd of its logarithm.

        Rows of a batch size that is not in the mapping are left out of the search.
        """
        own = known.get(self.start.batch, (1.0, 0.0))[0]
        self._relative = {int(size): (mean / own, sd) for size, (mean, sd) in known.items()}
        means = [self._relative.get(point.batch_size, (math.nan, 0.0))[0] for point in self._grid.points]
        sd = [self._relative.get(point.batch_size, (1.0, 0.0))[1] for point in self._grid.points]
        self._samples_sd = np.sign(self._grid.batch - self.start.batch) * sd
        self._samples = np.log(means) - np.log(self._grid.batch)
        self._known = np.isfinite(self._samples)

    def tell(self, point: OperatingPoint, stretch: Stretch) -> None:
        """Add the measurements of a probe at this point, or of training there after it."""
        index = self._grid.index(point)
        stats = PointStats.of(self._readings, stretch)
        if index in self._seen:
            self._seen[index].add(stats)
        else:
            self._seen[index] = stats
        if self.samples_left is not None and self._known[index]:
            done = stretch.seconds / stretch.step_s / math.exp(self._samples[index])
            self.samples_left = max(0.0, self.samples_left - done)
        self._is_fitted = False

    def above(self, point: OperatingPoint, power_w: float) -> None:
        """Exclude a point, with those above it on its row, after a reading of ``power_w`` above the cap there.

        Only higher values of the first knob count as above it while nothing else was measured below the cap, and if
        something above it was: a slower CPU can draw more.
        """
        index = self._grid.index(point)
        self._above[index] = power_w
        closed = self._grid.from_here_up(index)
        others = [one for one in self._seen if one != index]
        if not others or closed[others].any():
            closed &= (self._grid.level[:, 1:] == self._grid.level[index, 1:]).all(axis=1)
        self._open &= ~closed
        self._is_fitted = False

    def unfit(self, row: BatchShape) -> None:
        """Exclude a row that does not fit the memory or whose forward pass fails, and all that are larger in both."""
        self._open &= (self._grid.batch < row.batch) | (self._grid.micro < row.micro)

    def leave_out(self, points: Iterable[OperatingPoint]) -> None:
        """Exclude points that cannot be measured."""
        self._open[[index for point in points if (index := self._grid.of(key_of(point))) is not None]] = False

    # -------------------------------------------------------------------------------------------------------- choices

    def next(self) -> OperatingPoint | None:
        """The point to probe now; None if nothing is left that is worth it (``reason`` says why)."""
        self.worth = 0.0
        is_none_kept = self.best() is None
        if is_none_kept and ((first := self._beginning()) is not None or not self._seen):
            return first
        found = values(self._options(TIME if self._goal.has_bound else self._goal))
        if found.point is None and self._goal.has_bound:
            found = values(self._options(self._goal))
        self.worth = found.worth
        if found.point is None and not self._sure()[list(self._seen)].any():
            return self._beginning()  # if it finds none either, the reason is its own
        if found.point is None:
            of = "time" if self._goal.is_time else "goal"
            self.reason = f"further probing may save {found.worth:.1%} of the {of}, less than it costs"
            if found.is_blocked:
                self.reason = f"{found.worth:.1%} of the {of} may be left, but no further setting may be probed"
            return None
        self.reason = ""
        return self._grid.points[found.point]

    def is_brief(self, point: OperatingPoint) -> bool:
        """True if this probe only leads to others, so that one step and one window of the sensor are enough.

        That is so if the next setting up surely stays under the cap too, and for the very first point below a cap.
        """
        above = self._grid.next_up([self._grid.index(point)])
        if math.isinf(self._cap_w) or not above.any():
            return False
        return not self._seen or bool(self._sure()[above].all())

    def best(self) -> OperatingPoint | None:
        """The fastest point to the target of those measured that surely stay under the cap; None before the first.

        If none surely does, the one that draws least of those without a reading above the cap.
        """
        found = self._best(*self._costs(self._goal)) if self._seen else None
        return None if found is None else self._grid.points[found]

    def fastest(self, among: Callable[[Knobs], bool]) -> OperatingPoint | None:
        """The fastest point, measured or not, of those at these settings that stay under the cap by the forecast."""
        kept = [i for i in np.flatnonzero(self._sure()) if among(self._grid.points[i].knobs)] if self._seen else []
        found = min(kept, key=lambda index: float(self._forecasts().time.mean[index]), default=None)
        return None if found is None else self._grid.points[found]

    def step_s(self, point: OperatingPoint) -> float:
        """The step time there, in seconds: as measured, or by the forecast."""
        index = self._grid.index(point)
        measured = self._seen.get(index)
        return math.exp(self._forecasts().time.mean[index]) if measured is None else measured.step_s

    @property
    def settings(self) -> tuple[Knobs, ...]:
        """All settings that are searched, ascending."""
        return self._grid.settings

    def own_recipe(self) -> OwnRecipe | None:
        """The user's own row at the best value of the first knob, with the other knobs at their highest values.

        None before the first measurement, and if none of these settings is known to stay under the cap.
        """
        grid = self._grid
        is_own = (grid.row == grid.rows.index(self.start)) & (grid.level[:, 1:] == grid.top[1:]).all(axis=1)
        kept = [grid.points[index] for index in np.flatnonzero(is_own & self._sure())] if self._seen else []
        point = min(kept, key=self.step_s, default=None)
        return None if point is None else OwnRecipe(point, self.step_s(point), grid.index(point) in self._seen)

    def risk(self, point: OperatingPoint) -> float:
        """The probability that the power there, without the sensor's noise, is above the cap."""
        if math.isinf(self._cap_w):
            return 0.0
        power, index = self._forecasts().power, self._grid.index(point)
        return float(ndtr((power.mean[index] - math.log(self._cap_w + self._margin_w)) / power.sd[index]))

    # ---------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """State from which a later search continues, as JSON values."""
        keys = [list(key_of(point)) for point in self._grid.points]
        return {
            "seen": [[keys[index], dict(vars(one))] for index, one in self._seen.items()],
            "above": [[keys[index], power_w] for index, power_w in self._above.items()],
            "closed": [keys[index] for index in np.flatnonzero(~self._open)],
            "relative": [[size, *known] for size, known in self._relative.items()],
            "samples_left": self.samples_left,
            "reason": self.reason,
            "worth": self.worth,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``; points that this search does not have are skipped."""
        of = self._grid.of
        self._seen = {i: PointStats(**one) for key, one in state["seen"] if (i := of(key)) is not None}
        self._above = {i: power_w for key, power_w in state["above"] if (i := of(key)) is not None}
        self._open[:] = True
        self._open[[i for key in state["closed"] if (i := of(key)) is not None]] = False
        self.relative({size: (mean, sd) for size, mean, sd in state["relative"]})
        self.samples_left, self.reason, self.worth = state["samples_left"], state["reason"], state["worth"]
        self._is_fitted = False

    # ------------------------------------------------------------------------------------------------------- deciding

    def _beginning(self) -> OperatingPoint | None:
        """The user's row, or else the nearest one left; at low settings if there is a cap, the first that keep it."""
        index = next(self._beginnings(), None)
        if index is not None:
            self.reason = ""
            return self._grid.points[index]
        self.reason = "nothing fits"
        if read_w := self._read_w():
            least = min(read_w, key=lambda index: read_w[index])
            what = "the cap is not kept" if read_w[least] > self._cap_w else "no setting surely stays under the cap"
            self.reason = f"{what}: {read_w[least]:.4g} W at {self._grid.points[least]} is the least"
        return None

    def _read_w(self) -> dict[int, float]:
        """Power read at each point that was probed, above the cap or not."""
        return {index: one.power_mean_w for index, one in self._seen.items()} | self._above

    def _beginnings(self) -> Iterator[int]:
        """Points that may be measured first, in order.

        Below a cap, one reading above it is not the end: the nearest row is tried with each of the other knobs at its
        lowest value in turn, then every row with all of them there. A slower CPU can draw more, so the values next to
        the least reading follow, and that point again.
        """
        grid, left, read_w = self._grid, self._open.copy(), self._read_w()
        left[list(self._seen)] = False
        rows = [row for row in range(len(grid.rows)) if left[grid.row == row].any()]
        rows.sort(key=lambda row: [abs(math.log2(a / b)) for a, b in zip(grid.rows[row], self.start, strict=True)])
        lowest = np.zeros_like(grid.top)
        others = [grid.safe * (np.arange(len(grid.top)) != knob) for knob in range(1, len(grid.top))]
        wanted = [(row, level) for level in (grid.safe, *others) for row in rows[:1]]
        wanted += [(row, lowest) for row in rows]
        if math.isinf(self._cap_w):
            wanted = [(row, grid.top) for row in rows]
        for row, level in wanted:
            yield from map(int, np.flatnonzero(left & (grid.row == row) & (grid.level == level).all(axis=1)))
        if read_w and math.isfinite(self._cap_w):
            least = min(read_w, key=lambda index: read_w[index])
            apart = np.abs(grid.level - grid.level[least])
            is_next = (grid.row == grid.row[least]) & (apart[:, 0] == 0) & (apart.sum(axis=1) == 1)
            yield from map(int, np.flatnonzero(left & is_next))
            # Measured for longer, a point just below the cap may surely be.
            if least in self._seen and self._seen[least].times < CLOSE and read_w[least] <= self._cap_w:
                yield least

    def _forecasts(self) -> Forecast:
        if not self._is_fitted:
            self._forecast.fit(self._seen, self._above)
            self._is_fitted = True
        return self._forecast

    def _costs(self, goal: Goal = TIME) -> tuple[Array, Array]:
        """The cost of each point for the progress of one sample at the user's batch size: ln of the time, or of what
        the goal makes least, and its standard deviation. Points beyond the goal's bound are far."""
        time, power = self._forecasts().time, self._forecasts().power
        logs = time.mean.copy()
        for index, one in self._seen.items():
            logs[index] = math.log(one.step_s)  # the forecast smooths, and may prefer another measured point
        times = np.asarray(np.where(self._known, logs + self._samples, FAR))
        if goal.is_time:
            return times, time.sd
        prices, more = (np.log(goal.price(np.exp(power.mean + by), self._rest_w)) for by in (0.0, STEP))
        costs = times + prices
        if goal.max_slowdown is not None and (fastest := self._best(times, time.sd)) is not None:
            costs = costs + FAR * (times > times[fastest] + math.log1p(goal.max_slowdown))
        return costs, np.hypot(time.sd, (more - prices) / STEP * power.sd)

    def _limit_w(self) -> float:
        """The most that a point may draw so that no reading exceeds the cap, with all the noise that there may be."""
        noise_w = self._readings.noise_w or self._forecasts().scatter_w
        return self._cap_w - self._manner.noise * noise_w - self._readings.resolution_w / 2

    def _sure(self) -> Mask:
        """The points that stay under the cap, as far as is known."""
        if math.isinf(self._cap_w):
            return self._open
        power = self._forecasts().power
        return np.asarray(self._open & (np.exp(power.mean + self._manner.deviations * power.sd) <= self._limit_w()))

    def _short(self, sure: float | Array) -> Mask:
        """The points that stay under the cap for as long as a probe, in which the noise hardly reaches its limit."""
        if math.isinf(self._cap_w):
            return self._open
        forecast, (highest, highest_sd) = self._forecasts(), self._manner.highest
        mean_w = np.exp(forecast.power.mean)
        sd_w = np.hypot(mean_w * forecast.power.sd, highest_sd * forecast.scatter_w)
        limit_w = self._cap_w * (1 + self._manner.tolerance)
        below = mean_w + highest * forecast.scatter_w + sure * sd_w <= limit_w
        return np.asarray(self._open & below & self._within_first_climb(limit_w))

    def _probing(self) -> Array:
        """Standard deviations below the cap that a probe of each point needs."""
        grid, sure, seen = self._grid, self._manner.probing, list(self._seen)
        sures = np.full(len(self._open), sure)
        if not self._manner.trains:
            sures[(grid.value > grid.value[seen].max(axis=0)).any(axis=1)] = max(sure, BEYOND)
            sures[seen] = sure if self._manner.daring is None else AGAIN
        return sures

    def _within_first_climb(self, limit_w: float) -> Mask:
        """Points that stay under the limit even if all power rises with the clock, until unlike settings are known.

        One setting does not tell how much of its power is drawn at rest, nor how steeply the other part rises, and
        settings near each other hardly tell more than one: their difference is as small as its error. The next setting
        up is not bounded: on a board whose lowest setting is near the cap there would be none. A profile is bounded by
        its policy's ``climb`` instead.
        """
        seen = self._grid.value[list(self._seen), 0]
        if seen.max() >= UNLIKE * seen.min() or self._grid.several or not self._manner.trains:
            return np.ones_like(self._open)
        highest_w = max(one.power_mean_w for one in self._seen.values())
        rise = self._grid.value[:, 0] / seen.max()
        return np.asarray((highest_w * rise <= limit_w) | (rise <= 1) | self._grid.next_up(self._seen))

    def _likely(self, kept: Sequence[int]) -> Mask:
        """Points worth a risk: single settings up, in a profile also the lowest setting of every row, and of
        several clocks those that need no step up."""
        daring = self._manner.daring
        if daring is None:
            return np.zeros_like(self._open)
        found = self._grid.next_up(kept)
        if not self._manner.trains:
            highest = self._grid.level[list(self._seen)].max(axis=0)
            steps = np.maximum(self._grid.level - highest, 0).sum(axis=1)
            # Of one clock, daring those below as well: regret of 240 boards -0.3 %, boards with a probe over 5, not 4.
            found = steps <= 1 if self._grid.several else steps == 1
            found |= (self._grid.level == self._grid.safe).all(axis=1)
        return np.asarray(self._short(daring) & found)

    def _best(self, costs: Array, costs_sd: Array) -> int | None:
        measured = [index for index in self._seen if self._open[index]]
        if not measured:
            return None
        sure, power = self._sure(), self._forecasts().power
        if kept := [index for index in measured if sure[index] and self._known[index]]:
            return self._unless_own(min(kept, key=lambda index: float(costs[index])), kept, costs, costs_sd)
        kept = [index for index in measured if self._seen[index].power_peak_w <= self._cap_w]
        return min(kept, key=lambda index: float(power.mean[index]), default=None)

    def _unless_own(self, best: int, kept: Sequence[int], costs: Array, costs_sd: Array) -> int:
        """The best of these points, or of those with the user's own batch size if it is not surely better."""
        own = [index for index in kept if self._grid.batch[index] == self.start.batch]
        if best in own or not own:
            return best
        other = min(own, key=lambda index: float(costs[index]))
        sd = math.hypot(float(self._samples_sd[best]), float(costs_sd[best]), float(costs_sd[other]), 1e-9)
        return best if ndtr((costs[other] - costs[best]) / sd) >= self._manner.switch else other

    def _options(self, goal: Goal = TIME) -> Alternatives:
        forecast, manner, capped = self._forecasts(), self._manner, math.isfinite(self._cap_w)
        (times, _), (costs, costs_sd) = self._costs(), self._costs(goal)
        best = self._best(costs, costs_sd)
        chosen = min(self._seen, key=lambda index: float(costs[index])) if best is None else best
        if self._grid.several and not manner.trains:
            # Settings alike in most clocks take nearly the same time: each may be off by 1 %, their difference is not.
            both = forecast.time.sd**2 + forecast.time.sd[chosen] ** 2 - 2 * forecast.time.covariance(chosen)
            costs_sd = np.sqrt(np.maximum(costs_sd**2 - forecast.time.sd**2 + both, DRIFT**2))
        kept = [index for index in self._seen if self._open[index]]
        near = self._grid.near(kept) if capped else self._open
        if capped and manner.climb is not None:
            near = near & self._grid.within_climb(kept, manner.climb)
        often = np.zeros(len(costs), dtype=np.intp)
        often[list(self._seen)] = [one.times for one in self._seen.values()]
        shifts, weights = scenarios(np.zeros_like(costs) if self._manner.trains else self._samples_sd)
        return Alternatives(
            costs=costs,
            costs_sd=costs_sd,
            chosen=chosen,
            power=forecast.power if capped else None,
            limit=math.log(max(self._limit_w(), 1e-9)) if capped else math.inf,
            power_sd=forecast.power_noise,
            is_open=self._open & self._known,
            sure=self._sure(),
            short=self._short(self._probing()),
            likely=self._likely(kept),
            near=near,
            times=often,
            row=self._grid.row,
            level=self._grid.level,
            beyond=self._grid.beyond(self._seen),
            training=self._price(times, float(times[chosen])) if manner.trains else None,
            shifts=shifts,
            weights=weights,
            least=self._least(float(times[chosen])),
            deviations=manner.deviations,
        )

    def _least(self, base: float) -> float:
        """The saving, as a share of the time left, below which the search ends: of several clocks more of them where
        little of the training is left."""
        if not self._grid.several or self.samples_left is None:
            return self._manner.least
        left_s = max(1e-9, self.samples_left * math.exp(min(base, FAR / 2)))
        return min(max(self._manner.least, PROBES_WORTH * float(self._probe_s().min()) / left_s), MOST_LEAST)

    def _probe_s(self) -> Array:
        return np.asarray(self._measuring_s + PASSES * np.exp(self._forecasts().time.mean))

    def _price(self, costs: Array, base: float) -> tuple[Array, Array]:
        """The share of the time left that a probe at each point costs in training, and how long it takes."""
        left_s = HORIZON_S if self.samples_left is None else self.samples_left * math.exp(min(base, FAR / 2))
        probe_s = self._probe_s()
        if left_s <= 0:
            return np.full(len(costs), math.inf), probe_s
        return np.asarray(probe_s * np.maximum(0.0, 1 - np.exp(base - costs)) / left_s), probe_s
