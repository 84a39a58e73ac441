"""Keeps the board below its limits while a session moves it from one setting to another."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

from wattune.devices import Device, Setting
from wattune.errors import DeviceError
from wattune.records import GuardEvent
from wattune_agent.cap_guard import HEAT_PATIENCE_S, PATIENCE_S, UP_BELOW, CapGuard

NEVER = -math.inf


class Keeper:
    """Every reading of the sensor goes through here, on real time from the sampling thread.

    While a point is probed, the first reading above the cap brings the board to its lowest setting and ends the probe;
    at all other times the rule of the cap guard holds. During an evaluation, whose power nobody has measured yet, the
    board climbs from its lowest setting as far as readings allow, and begins the next one where it came to.
    """

    def __init__(self, device: Device, setting: Setting, cap_w: float | None, max_temp_c: float | None = None):
        self.cap_w = math.inf if cap_w is None else cap_w
        self.max_temp_c = max_temp_c
        self.failure: Exception | None = None
        """What the device raised when its setting was to be changed."""
        self.crossed_w: float | None = None
        """The reading that ended the probe under way."""
        self.was_early = False
        """Whether that reading is of before the probe began."""
        self.has_evaluated = False
        """Whether there was an evaluation since somebody set this to False."""
        self.mixes = False
        """Whether readings are collected in evaluations, too."""
        self.readings: list[float] = []
        """What the sensor said since ``collect``."""
        self.ratio: Callable[[float, float], float | None] = lambda low, high: None
        """Power at one setting over that at another, as far as training has shown it."""
        self._device = device
        self._setting = setting
        self._lock = threading.RLock()
        self._events: list[GuardEvent] = []
        self._probing = self._was_probing = False
        self._moved_s = NEVER
        self._quiet_until_s = NEVER
        self._over_s, self._last_s = 0.0, 0.0
        self._above: tuple[float, float | None] = (0.0, None)
        self._collecting = False
        self._evaluating = False
        self._reached = self.lowest
        self._latest_w = 0.0
        self._follows_training = False
        self._evaluates_at: float | None = None
        self._rule = self._trains = self._guard_at(self._setting.value)

    @property
    def lowest(self) -> float | None:
        """The lowest setting; None on a device that has none."""
        return self._device.settings[0] if self._device.settings else None

    @property
    def value(self) -> float | None:
        """The present setting."""
        return self._setting.value

    @property
    def latest_w(self) -> float:
        """The latest reading."""
        return self._latest_w

    @property
    def has_read(self) -> bool:
        """Whether there was a reading."""
        return self._latest_w > 0

    @property
    def events(self) -> tuple[GuardEvent, ...]:
        """Every answer to a reading above the cap."""
        rules = [self._trains] if self._rule is self._trains else [self._trains, self._rule]
        found = [*self._events, *(GuardEvent(**event) for rule in rules for event in rule.events)]
        return tuple(sorted(found, key=lambda event: event.time_s))

    @property
    def pushed(self) -> int:
        """How often the board was pushed down from the setting that it was last moved to."""
        if self._top is None or self._top == self.lowest:
            return 0
        below = self._device.settings[self._device.settings.index(self._top) - 1]
        return sum(event["action"] == "down" and event["setting"] == below for event in self._trains.events)

    @property
    def stopped(self) -> str | None:
        """Why the limits cannot be kept at the lowest setting, so that training has to end; None where they can."""
        if not self._trains.stopped and self._over_s < PATIENCE_S:
            return None
        power_w, temperature_c = self._above
        if power_w > self.cap_w or temperature_c is None:
            return f"{power_w:.4g} W at the lowest setting, above the cap of {self.cap_w:.4g} W"
        return f"{temperature_c:.4g} °C at the lowest setting, above the limit of {self.max_temp_c:g} °C"

    def move(self, value: float | None, *, probe: bool = False) -> None:
        """Bring the board to a setting, to train or to probe there. Raises: DeviceError."""
        with self._lock:
            self._probing, self._collecting = probe, False
            self.readings.clear()
            self.crossed_w, self.was_early = None, False
            self._change(value)

    def collect(self) -> None:
        """Keep every reading from now on in ``readings``, behind those that are there."""
        with self._lock:
            self._collecting = True

    def forget(self, after: int = 0) -> None:
        """Keep no more readings, and of those that are there only so many."""
        with self._lock:
            self._collecting = False
            del self.readings[after:]

    def lose(self) -> str:
        """Nobody sees the power any more: to the lowest setting. What was done, in words."""
        with self._lock:
            try:
                if self._setting.value is not None and self._setting.value != self.lowest:
                    self._change(self.lowest)
                    return f"; set to the lowest, {self.lowest:g}"
            except DeviceError as error:
                return f"; could not be set to the lowest: {error}"
        return ""

    # ---------------------------------------------------------------------------------------------------- evaluation

    def begin_evaluation(self) -> None:
        """To a setting at which evaluations have kept the cap; the lowest one at first."""
        with self._lock:
            value = self._setting.value
            self._collecting, self.has_evaluated = self._collecting and self.mixes, True
            self._was_probing, self._probing = self._probing, False
            if value is not None and self.cap_w < math.inf:
                assert self._reached is not None
                self._evaluating = self._follows_training = True
                self._evaluate_at(min(value, self._reached))

    def end_evaluation(self) -> None:
        """Back to where training was."""
        with self._lock:
            self._probing = self._was_probing
            if self._evaluating:
                self._evaluating = self._follows_training = False
                self._events += [GuardEvent(**event) for event in self._rule.events]
                self._rule = self._trains
                assert self._rule.value is not None
                self._go(self._rule.value)

    def _evaluate_at(self, value: float) -> None:
        if self._rule is not self._trains:
            self._events += [GuardEvent(**event) for event in self._rule.events]
        self._go(value)
        self._evaluates_at, self._rule = value, self._guard(self._setting.change)

    def _climb(self, power_w: float) -> None:
        settings, value = self._device.settings, self._setting.value
        assert value is not None
        if self._rule.value != self._evaluates_at:  # pushed down: no further than this, from now on
            self._reached = self._rule.value
            return
        if value >= (self._trains.value or value) or not self._is_settled():
            return
        above = settings[settings.index(value) + 1]
        ratio = self.ratio(value, above)
        if ratio is not None and power_w * ratio < UP_BELOW * self.cap_w:
            self._evaluate_at(above)
            self._reached = above

    # ------------------------------------------------------------------------------------------------------ readings

    def __call__(self, time_s: float, power_w: float) -> None:
        """Answer one reading: ``power_w`` watts at ``time_s`` seconds of the session. Raises: DeviceError."""
        with self._lock:
            self._latest_w = power_w
            try:
                self._answer(time_s, power_w)
            except Exception as error:
                self.failure = error
                raise

    def _answer(self, time_s: float, power_w: float) -> None:
        temperature_c = None if self.max_temp_c is None else self._device.conditions().temperature_c
        is_above = power_w > self.cap_w
        is_hot = temperature_c is not None and self.max_temp_c is not None and temperature_c > self.max_temp_c
        if is_above or is_hot:
            self._above = power_w, temperature_c
        self._wait(time_s, is_above, is_hot)
        if is_above and self._device.now_s() < self._quiet_until_s:
            if self._follows_training:  # of the training before this evaluation, or so it has to be taken
                self._blame(time_s, power_w, temperature_c)
            return  # of before the board went down: answered already
        if is_above and self._probing:
            self._cross(time_s, power_w)
            return
        before = self._rule.value
        self._rule(time_s, power_w, temperature_c)
        if self._probing and self._rule.value != before:
            self.crossed_w, self._probing = power_w, False  # too hot, in the middle of a probe
        if self._evaluating:
            self._climb(power_w)
        if self._collecting:
            self.readings.append(power_w)

    def _wait(self, time_s: float, is_above: bool, is_hot: bool) -> None:
        # As the guard's own patience, over all that is tried at the lowest setting.
        elapsed_s, self._last_s = max(0.0, time_s - self._last_s), time_s
        if (is_above or is_hot) and self._setting.value == self.lowest:
            self._over_s += elapsed_s if is_above else elapsed_s * PATIENCE_S / HEAT_PATIENCE_S
        else:
            self._over_s = max(0.0, self._over_s - elapsed_s)

    def _blame(self, time_s: float, power_w: float, temperature_c: float | None) -> None:
        # What it leads to is done when the evaluation is over: the board is lower already.
        self._follows_training = False
        if self._was_probing:
            self.crossed_w, self._was_probing = power_w, False
            self._trains = self._guard_at(self.lowest)
            self._events.append(GuardEvent(time_s=time_s, power_w=power_w, action="down", setting=self.lowest))
        else:
            self._trains(time_s, power_w, temperature_c)

    def _cross(self, time_s: float, power_w: float) -> None:
        sensor = self._device.sensor
        self.was_early = self._device.now_s() - self._moved_s < sensor.lag_s + sensor.period_s
        self.crossed_w, self._probing = power_w, False
        at_lowest = self._setting.value == self.lowest
        self._change(self.lowest)
        self._quiet_until_s = self._device.now_s() + sensor.settle_s
        action: Any = "at lowest" if at_lowest else "down"
        self._events.append(GuardEvent(time_s=time_s, power_w=power_w, action=action, setting=self.lowest))

    def _is_settled(self) -> bool:
        return self._device.now_s() - self._moved_s >= self._device.sensor.settle_s

    def _change(self, value: float | None) -> None:
        """To another setting, from where training goes on."""
        self._events += [GuardEvent(**event) for event in self._trains.events]
        self._go(value)
        self._evaluating = self._follows_training = False
        self._rule = self._trains = self._guard_at(self._setting.value)

    def _go(self, value: float | None) -> None:
        before, now_s = self._setting.value, self._device.now_s()
        if value is not None and before is not None and value != before:
            self._setting.change(value)
            if value > before:
                self._quiet_until_s = NEVER
        went_down = value is not None and before is not None and value < before
        if went_down or now_s < self._quiet_until_s:
            self._quiet_until_s = now_s + self._device.sensor.settle_s
        self._moved_s = now_s

    def _set_training(self, value: float) -> None:
        if not self._evaluating:
            self._setting.change(value)

    def _guard_at(self, value: float | None) -> CapGuard:
        self._top = value
        return self._guard(self._set_training, value)

    def _guard(self, change: Callable[[float], None], value: float | None = None) -> CapGuard:
        cap_w = None if self.cap_w == math.inf else self.cap_w
        value = self._setting.value if value is None else value
        settle_s = self._device.sensor.settle_s
        return CapGuard(self._device.ladder(value), change, cap_w, settle_s, self.max_temp_c)

    # --------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """What a later keeper needs, as JSON values."""
        events = [event.model_dump() for event in self.events]
        return {
            "events": events,
            "reached": self._reached,
            "reached_under_w": None if self.cap_w == math.inf else self.cap_w,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        self._events = [GuardEvent(**event) for event in state["events"]]
        under_w = state["reached_under_w"]
        if self.cap_w >= (math.inf if under_w is None else under_w):
            self._reached = state["reached"]
