"""Step times and powers of a plan's settings, and the best setting under a limit."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from wattune.cap import SensorLimit
from wattune.point import Knobs
from wattune.records import Plan


class Prediction(NamedTuple):
    """Prediction of a setting: time of a step, power to compare with a cap, mean power (None without its energy)."""

    step_s: float
    capped_w: float
    power_w: float | None


class PlannedSettings:
    """The settings that a plan has a prediction for, at its batch size and micro-batch size."""

    def __init__(self, plan: Plan):
        self._plan = plan
        self._predictions = _predictions(plan)
        self.best_under = lru_cache(maxsize=100)(self._best_under)  # asked ten times a second, of the same few limits

    def step_s(self, knobs: Knobs) -> float:
        """Seconds of a step at this setting; 0 if that is unknown."""
        known = self._predictions.get(knobs)
        return 0.0 if known is None else known.step_s

    def _best_under(self, limit: SensorLimit) -> Knobs | None:
        """The best setting for the plan's goal that is expected to stay under this limit; None if none is."""
        plan = self._plan
        allowed = {knobs: one for knobs, one in self._predictions.items() if limit.allows(one.capped_w)}
        if not plan.goal.is_time and plan.step_s is not None and plan.power_mean_w is not None:
            beside = plan.step_s, plan.power_mean_w
            ranks = {
                knobs: (*plan.goal.order(one.step_s, one.power_w, plan.rest_w, beside=beside), knobs)
                for knobs, one in allowed.items()
                if one.power_w is not None
            }
            if ranks:
                return min(ranks, key=lambda knobs: ranks[knobs])
        return min(allowed, key=lambda knobs: (allowed[knobs].step_s, knobs), default=None)


def _predictions(plan: Plan) -> dict[Knobs, Prediction]:
    """Setting -> prediction, from the plan's candidates; empty if the plan does not know the time of its own steps."""
    if plan.relative_time is None or plan.step_s is None:
        return {}
    predictions = {}
    for one in plan.candidates:
        if one.shape != plan.shape or one.relative_time is None or one.predicted_peak_w is None:
            continue
        power_w = one.predicted_j / one.predicted_s if one.predicted_s and one.predicted_j is not None else None
        predictions[one.knobs] = Prediction(
            plan.step_s * one.relative_time / plan.relative_time,
            one.predicted_window_w or one.predicted_peak_w,
            plan.power_mean_w if one.knobs == plan.knobs else power_w,
        )
    return predictions
