"""Drift of step time and power from the plan while training, and replanning when they are off."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.point import Knobs
from wattune.records import Plan

STALE = 0.05
"""Share by which the mean power or the time of a step may be off before the plan counts as stale."""

GAP = 0.05
"""Longest pause between two steps, as a share of a step, for which they count as uninterrupted."""

SHARE = 0.1
"""Share of the predicted samples after which the mean power and the time of a step are compared."""

READINGS = 20
"""Least number of readings for a comparison."""


class Drift(NamedTuple):
    """Time of a step and mean power, each over what the plan says."""

    time: float
    power: float

    @property
    def is_stale(self) -> bool:
        """True if either is off by more than ``STALE``."""
        return max(abs(self.time - 1), abs(self.power - 1)) > STALE

    def __str__(self) -> str:
        parts = []
        if abs(self.power - 1) > STALE:
            parts.append(f"steps draw {100 * abs(self.power - 1):.0f} % {'more' if self.power > 1 else 'less'}")
        if abs(self.time - 1) > STALE:
            steps, longer = "" if parts else "steps ", "longer" if self.time > 1 else "less"
            parts.append(f"{steps}take {100 * abs(self.time - 1):.0f} % {longer}")
        return " and ".join(parts) + " than the profile says"


class DriftWatch:
    """Collects times of steps and the readings that were taken in steps alone, as the profile did.

    A reading counts once steps have gone on for as long as the sensor needs to forget what was before them.
    """

    def __init__(self, device: Device, plan: Plan, budget_samples: int):
        self._device = device
        self._plan = plan
        self._predictions = _row(plan)
        self._settings = _settings(plan)
        self._knobs = plan.knobs
        self._off = Drift(1.0, 1.0)
        self._share_samples = SHARE * min(float(budget_samples), plan.expected_samples or math.inf)
        self._in_step = False
        self._steady_since_s: float | None = None
        self._last_s = self._last_step_s = 0.0
        self.forget(0)

    def forget(self, samples: int) -> None:
        """Start again after ``samples`` samples: what was measured so far belongs to something else."""
        self._since_samples = samples
        self._steps, self._seconds = 0, 0.0
        self._readings, self._watts = 0, 0.0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one step."""
        begun_s = self._device.now_s()
        if self._steady_since_s is None or begun_s - self._last_s > GAP * self._last_step_s + 1e-9:
            self._steady_since_s = begun_s
        self._in_step = True
        try:
            yield
        finally:
            self._in_step = False
            self._last_s = self._device.now_s()
        self._last_step_s = self._last_s - begun_s
        self._steps, self._seconds = self._steps + 1, self._seconds + self._last_step_s

    def read(self, time_s: float, power_w: float) -> None:
        """Take in a reading."""
        since_s = self._steady_since_s
        if self._in_step and since_s is not None and self._device.now_s() - since_s >= self._device.sensor.settle_s:
            self._readings, self._watts = self._readings + 1, self._watts + power_w

    def look(self, samples: int) -> Drift | None:
        """Step time and power over those expected, once enough samples have passed; None until then."""
        expected = self._predictions.get(self._knobs)
        if expected is None or samples - self._since_samples < self._share_samples or self._readings < READINGS:
            return None
        drift = Drift(self._seconds / self._steps / expected.step_s, self._watts / self._readings / expected.power_w)
        self.forget(samples)
        return Drift(drift.time / self._off.time, drift.power / self._off.power)

    def follow(self, drift: Drift) -> Knobs | None:
        """Scale the expectation at every setting by the drift, and return the setting that is now the best.

        That is the best one for the plan's goal and batch size that stays under the cap if every point is off as much
        as this one. None if that is the present setting, or if there is no cap. If steps take longer than they should,
        something else slows the board down, and a higher setting would not help.
        """
        self.correct(drift)
        off, cap_w, here = self._off, self._plan.cap_w, self._knobs
        if cap_w is None or not self._predictions:
            return None
        settings = [
            s
            for s, prediction in self._predictions.items()
            if prediction.capped_w * off.power + self._plan.margin_w <= cap_w
        ]
        if drift.time > 1 + STALE:
            settings = [knobs for knobs in settings if all(knobs[name] <= here[name] for name in here)]
        best = min(settings, key=lambda knobs: (*self._rank(knobs), knobs), default=min(self._predictions))
        if best == here:
            return None
        self._knobs = best
        return best

    def correct(self, drift: Drift) -> None:
        """Scale the expectation at every setting by the drift."""
        self._off = Drift(self._off.time * drift.time, self._off.power * drift.power)

    def setting_under(self, limit: SensorLimit) -> Knobs | None:
        """The best setting at the plan's batch size that is expected to stay under this limit; None if none does."""
        allowed = [knobs for knobs, known in self._settings.items() if limit.allows(known.capped_w * self._off.power)]
        ranked = [knobs for knobs in allowed if knobs in self._predictions]
        if ranked and not self._plan.goal.is_time:
            return min(ranked, key=lambda knobs: (*self._rank(knobs), knobs))
        return min(allowed, key=lambda knobs: (self._settings[knobs].step_s, knobs), default=None)

    def move(self, knobs: Knobs, samples: int) -> None:
        """Expect another setting after ``samples`` samples: that of a cap that changed."""
        self._knobs = knobs
        self.forget(samples)

    @property
    def expected_step_s(self) -> float:
        """Seconds that a step is expected to take at the present setting; 0 if that is unknown."""
        known = self._settings.get(self._knobs)
        return 0.0 if known is None else known.step_s * self._off.time

    def _rank(self, knobs: Knobs) -> tuple[bool, float]:
        """Sort key of a setting for the plan's goal and pace, the smallest being the best."""
        plan, expected = self._predictions[self._plan.knobs], self._predictions[knobs]
        beside = plan.step_s, plan.power_w
        return self._plan.goal.order(expected.step_s, expected.power_w, self._plan.rest_w, beside=beside)

    def state_dict(self) -> dict[str, Any]:
        """State to resume from, as JSON values."""
        return {"_setting": dict(self._knobs), **{name: getattr(self, name) for name in _STATE}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``."""
        for name in _STATE:
            setattr(self, name, state[name])
        self._knobs = self._device.knobs_from(state["_setting"])
        self._off = Drift(*state["_off"])


_STATE = (
    "_off",
    "_since_samples",
    "_steps",
    "_seconds",
    "_readings",
    "_watts",
    "_steady_since_s",
    "_last_s",
    "_last_step_s",
)


class _Known(NamedTuple):
    step_s: float
    power_w: float
    capped_w: float


class _Setting(NamedTuple):
    step_s: float
    capped_w: float


def _settings(plan: Plan) -> dict[Knobs, _Setting]:
    """Setting -> step time and the power that a cap is compared with, also of settings without predicted energy."""
    if plan.relative_time is None or plan.step_s is None:
        return {}
    return {
        one.knobs: _Setting(
            plan.step_s * one.relative_time / plan.relative_time, one.predicted_window_w or one.predicted_peak_w
        )
        for one in plan.candidates
        if one.shape == plan.shape and one.relative_time is not None and one.predicted_peak_w is not None
    }


def _row(plan: Plan) -> dict[Knobs, _Known]:
    """Setting -> what the plan says of it, for the plan's own batch size and micro-batch size."""
    time = plan.relative_time
    if not plan.knobs or time is None or plan.step_s is None or plan.power_mean_w is None:
        return {}
    capped_w = plan.predicted_window_w or plan.predicted_peak_w or plan.power_mean_w
    predictions = {plan.knobs: _Known(plan.step_s, plan.power_mean_w, capped_w)}
    for one in plan.candidates:
        at = one.knobs
        same = (one.batch_size, one.micro_batch_size) == (plan.batch_size, plan.micro_batch_size)
        if not same or not at or at == plan.knobs or one.relative_time is None or one.predicted_peak_w is None:
            continue
        if one.predicted_s is not None and one.predicted_j is not None:
            step_s = plan.step_s * one.relative_time / time
            capped_w = one.predicted_window_w or one.predicted_peak_w
            predictions[at] = _Known(step_s, one.predicted_j / one.predicted_s, capped_w)
    return predictions
