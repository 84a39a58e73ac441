"""The rules under comparison: wattune's, and two simple rules, tuned on the same loads."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from benchmarks.guard.board import FakeSensor, Ladder, Rule
from wattune_agent.cap_level import CapLevel, Sensing
from wattune_agent.power_log import PowerTable
from wattune_agent.slicing import gains_of

WINDOW_S = 1.0


def level(ladder: Ladder, sensor: FakeSensor, cap_w: float, *, slices: bool) -> Rule:
    sensing = Sensing(WINDOW_S, sensor.averaging_s, sensor.lag_s, sensor.period_s)
    gains = gains_of(ladder.clocks_mhz) if slices else None
    held = CapLevel(PowerTable.guess(ladder.clocks_mhz), cap_w, sensing, gains=gains)
    if slices:
        return held.step
    return lambda time_s, power_w: held.setting if power_w is None else held.step(time_s, power_w)


class _Windowed:
    """The setting of a rule that decides by the mean of a second of readings."""

    def __init__(self, ladder: Ladder, sensor: FakeSensor, cap_w: float) -> None:
        self.cap_w, self.top = cap_w, len(ladder.clocks_mhz) - 1
        self.setting, self.position = self.top, float(self.top)
        self.readings: deque[float] = deque(maxlen=10)
        self.changed_s, self.low_s = -math.inf, 0.0

    def mean_w(self, power_w: float) -> float:
        self.readings.append(power_w)
        return sum(self.readings) / len(self.readings)


class Hysteresis(_Windowed):
    """One setting down above the cap, one up after a second below 90 % of it."""

    def __call__(self, time_s: float, power_w: float | None) -> int:
        """The setting from now on."""
        if power_w is None:
            return self.setting
        mean_w = self.mean_w(power_w)
        self.low_s = self.low_s + 0.1 if mean_w < 0.9 * self.cap_w else 0.0
        if mean_w > self.cap_w and time_s - self.changed_s >= 0.5:
            self.setting, self.changed_s = max(0, self.setting - 1), time_s
        elif self.low_s >= 1.0:
            self.setting, self.changed_s, self.low_s = min(self.top, self.setting + 1), time_s, 0.0
        return self.setting


class Pi(_Windowed):
    """A proportional and integral controller of the mean, which stops to integrate at both ends of the ladder."""

    def __call__(self, time_s: float, power_w: float | None) -> int:
        """The setting from now on."""
        if power_w is None:
            return self.setting
        error = 1 - self.mean_w(power_w) / self.cap_w
        self.position = min(float(self.top), max(0.0, self.position + 0.2 * self.top * error))
        self.setting = round(min(float(self.top), max(0.0, self.position + 0.5 * self.top * error)))
        return self.setting


def tenths(rule: Rule) -> Rule:
    """The rule with ten readings a second, as it was tuned."""
    return lambda time_s, power_w: rule(time_s, power_w if round(100 * time_s) % 10 == 0 else None)


RULES: dict[str, Callable[[Ladder, FakeSensor, float], Rule]] = {
    "slices on": lambda ladder, sensor, cap_w: level(ladder, sensor, cap_w, slices=True),
    "slices off": lambda ladder, sensor, cap_w: level(ladder, sensor, cap_w, slices=False),
    "hysteresis": lambda *of: tenths(Hysteresis(*of)),
    "PI": lambda *of: tenths(Pi(*of)),
}
