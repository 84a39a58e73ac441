"""The power limiter: applies the readings of the power sensor to the device's setting."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from wattune.cap import SensorLimit
from wattune.devices.base import Device, Setting
from wattune.devices.meter import GONE_AFTER_S, sensor_window
from wattune.errors import DeviceError, InputError
from wattune.point import Knobs
from wattune.records import GuardEvent
from wattune_agent.cap_guard import CapGuard, is_above, is_too_hot
from wattune_agent.cap_level import UP_PER_S, CapLevel, Sensing
from wattune_agent.power_log import PowerTable

__all__ = ["PowerLimiter", "check_limit"]

NEVER = -math.inf

CLIMBS_PER_S = 2.0
"""Settings a second by which evaluations rise: they last for seconds."""


def check_limit(device: Device, max_temp_c: float | None) -> None:
    """Check that the device can be held below a temperature.

    Raises: InputError for a limit that is not a temperature, and for a device that does not report its own.
    """
    if max_temp_c is None:
        return
    if isinstance(max_temp_c, (bool, str)) or not math.isfinite(max_temp_c):
        raise InputError("max_temp_c", value=max_temp_c, allowed="degrees Celsius, or none")
    if device.conditions().temperature_c is None:
        raise InputError(f"{device.name} does not report its temperature", value=max_temp_c, allowed="no limit on it")


class PowerLimiter:
    """The rule of ``wattune_agent.cap_guard`` on a device, in three modes.

    - Hold, the usual one: at the setting it was moved to, or at the highest below it whose mean stays under the cap.
    - Probe (``move(knobs, probe=True)``): a mean over the window that is surely above the cap (without a window, one
      reading) ends the probe and brings the device to its safest setting.
    - Evaluate (between ``begin_evaluation`` and ``end_evaluation``): for work whose power nobody has measured, a level
      of its own climbs from the first knob's safest value, and the next evaluation begins at what it reached.

    Call it with each reading; on real time from the sampling thread. A temperature above its limit counts as a reading
    above the cap. A temperature that is missing for over ``GONE_AFTER_S`` under a limit ends the run at the safest
    setting. Without any limit it does nothing.
    """

    def __init__(self, device: Device, setting: Setting, limit: SensorLimit):
        self.limit = limit
        self.failure: Exception | None = None
        """Error of the device when its setting was to be changed."""
        self.power_w: float | None = None
        """The newest reading."""
        self.crossed_w: float | None = None
        """The power that ended the probe: a mean over the window, or a reading."""
        self.was_early = False
        """True if that power dates from before the probe began."""
        self.is_lowered = False
        """True while a cap holds that was set for a while, below the run's own."""
        self.was_lowered = False
        """True if one held at any time since the device was brought to its setting: readings may have lowered it."""
        self.ratio: Callable[[Knobs, Knobs], float | None] = lambda low, high: None
        """Power at the second setting over power at the first, as far as it is known."""
        self._device = device
        self._setting = setting
        self._lock = threading.RLock()
        self._window = sensor_window(device.guarded_sensor, limit)
        self._blind: str | None = None  # why readings say nothing any more
        self._felt_s: float | None = None  # when there last was a temperature
        self._exceeded: tuple[float, float | None] = (0.0, None)  # the last reading above a limit, its temperature
        self._moved_s = self._quiet_until_s = NEVER  # in the device's time
        self._exceeds_until_s = NEVER  # what was above a limit may be in readings until then
        self._probing = self._was_probing = False
        self._evaluation: CapGuard | None = None
        self._reached = _first_lowered(device)
        self._blames_work = False  # whether an old reading in an evaluation is the work's, which was interrupted
        self.top = setting.knobs
        """The setting that it was last moved to: the highest one."""
        self._work = self._new_guard(device.ladder(self._setting.knobs), None)

    @property
    def knobs(self) -> Knobs:
        """The present setting; empty if nothing is set."""
        return self._setting.knobs

    @property
    def has_read(self) -> bool:
        """True once there was a reading."""
        return self._work.has_read

    @property
    def events(self) -> tuple[GuardEvent, ...]:
        """Answers to readings above a limit: of very many, the first and the newest ones."""
        return tuple(GuardEvent(**event) for event in self._work.events)

    @property
    def events_left_out(self) -> int:
        """Number of answers that are not in ``events`` any more."""
        return self._work.events_left_out

    def take_events(self) -> tuple[GuardEvent, ...]:
        """Take the answers since the last call out of ``events``."""
        return tuple(GuardEvent(**event) for event in self._work.take_events())

    @property
    def pushed(self) -> int:
        """Number of times that the device was pushed down from ``top``."""
        return self._work.pushed

    @property
    def stopped(self) -> str | None:
        """Why the device cannot be held below its limits, so that the work has to end; None while it can."""
        if self._blind is not None or not self._work.stopped:
            return self._blind
        power_w, temperature_c = self._exceeded
        if is_above(power_w, self.limit.limit_w) or temperature_c is None:
            return f"{power_w:.4g} W at the lowest setting, above the cap of {self.limit.limit_w:.4g} W"
        return f"{temperature_c:.4g} °C at the lowest setting, above the limit of {self.limit.max_temp_c:g} °C"

    @property
    def lowest_w(self) -> float | None:
        """The reading above the cap at the lowest setting, which ended the work; None if that is not why it ended."""
        is_power = self._blind is None and self._work.stopped and is_above(self._exceeded[0], self.limit.limit_w)
        return self._exceeded[0] if is_power else None

    # ------------------------------------------------------------------------------------------------------- settings

    def move(self, knobs: Knobs, *, probe: bool = False) -> None:
        """Bring the device to a setting, to hold it or to probe there. Raises: DeviceError."""
        with self._lock:
            self._probing, self.crossed_w, self.was_early = probe, None, False
            self.was_lowered = self.is_lowered
            self._go(knobs)
            self._window.restart(self._device.sensor.settle_s)  # at the same setting, another batch draws another power
            self._evaluation, self._blames_work = None, False
            self.top = self._setting.knobs
            self._work = self._new_guard(self._device.ladder(self.top), self._work)

    def free(self) -> None:
        """Hold the device at the present setting or lower, and let it rise up to its highest one as far as the cap
        allows."""
        with self._lock:
            self._probing, self.crossed_w = False, None
            steps = list(self._device.ladder(self._setting.knobs))
            at = len(steps) - 1
            for knob in reversed(self._device.knobs if steps else ()):
                above = knob.by_power[knob.by_power.index(steps[-1][knob.name]) + 1 :]
                steps += [steps[-1].replace(**{knob.name: value}) for value in above]
            if len(steps) > at + 1:
                self.top = steps[-1]
                self._work = self._new_guard(steps, self._work)
                self._work.begin_at(at)

    def move_cap(self, limit_w: float | None, *, is_lowered: bool = False) -> None:
        """Answer readings above this limit from now on, None: none.

        ``is_lowered``: a cap that was set for a while, below the run's own.
        """
        with self._lock:
            self.is_lowered = is_lowered
            self.was_lowered = self.was_lowered or is_lowered
            before_w = self.limit.limit_w
            self.limit = replace(self.limit, limit_w=limit_w)
            self._window.cap_w = limit_w
            for guard in (self._work, self._evaluation):
                if guard is not None:
                    guard.move_cap(limit_w)
            if limit_w is not None and (before_w is None or limit_w < before_w):
                self._reached = _first_lowered(self._device)  # evaluations climb again, as they do under a new cap

    def expect_old_readings(self) -> None:
        """Leave readings above the cap unanswered until the sensor holds nothing from before now."""
        with self._lock:
            self._quiet_until_s = self._device.now_s() + self._device.sensor.settle_s

    @property
    def quiet_s(self) -> float:
        """Seconds for which readings above the cap stay unanswered, since they may hold power from before."""
        return max(0.0, self._quiet_until_s - self._device.now_s())

    def lose(self) -> str:
        """Bring the device to its safest setting, for good, since its power is not known any more.

        Returns: the outcome in words, to be appended to a sentence.
        """
        with self._lock:
            self._blind = "no reading of the power sensor"
            try:
                if self._setting.knobs != (safest := self._device.safest) and self._setting.knobs:
                    self._go(safest)
                    return f"; set to the lowest, {', '.join(f'{value:g}' for value in safest.values())}"
            except DeviceError as error:
                return f"; could not be set to the lowest: {error}"
        return ""

    def _go(self, knobs: Knobs) -> None:
        before, now_s = self._setting.knobs, self._device.now_s()
        if knobs and before:
            knobs = self._device.safest if self._blind else knobs
            went_down = knobs != before and self._is_below(knobs, before)
            if knobs != before:
                self._setting.change(knobs)
                self._window.restart(self._device.sensor.settle_s)
            if went_down or (knobs == before and now_s < self._quiet_until_s):
                self._quiet_until_s = now_s + self._device.sensor.settle_s
            elif knobs != before:  # older power in the reading is lower, unless it was above a limit itself
                self._quiet_until_s = self._exceeds_until_s
        self._moved_s = now_s

    def _is_below(self, knobs: Knobs, other: Knobs) -> bool:
        """True if no knob draws more than at the other setting."""
        return all(
            knob.by_power.index(knobs[knob.name]) <= knob.by_power.index(other[knob.name])
            for knob in self._device.knobs
        )

    def _new_guard(
        self,
        steps: Sequence[Knobs],
        after: CapGuard | None,
        change: Callable[[Knobs], None] | None = None,
        up_per_s: float = UP_PER_S,
    ) -> CapGuard:
        """A guard at the last of the ``steps``, the settings that it may use."""
        limit, sensor = self.limit, self._device.guarded_sensor
        sensing = Sensing(limit.window_s or 0.0, sensor.window_s, sensor.lag_s, sensor.period_s, sensor.noise_w)
        level = CapLevel(self._table(steps), limit.limit_w, sensing, up_per_s=up_per_s)
        return CapGuard(steps, change or self._set_for_work, level, limit.max_temp_c, after)

    def _set_for_work(self, knobs: Knobs) -> None:
        if self._evaluation is None:
            self._setting.change(knobs)

    def _table(self, steps: Sequence[Knobs]) -> PowerTable:
        """Power of the settings, as far as it is known."""
        guess = PowerTable.guess([self._scale(knobs) for knobs in steps] or [1.0]).ratios
        known = [self.ratio(low, high) for low, high in pairwise(steps)]
        return PowerTable([guess[i] if ratio is None else max(1.0, ratio) for i, ratio in enumerate(known)])

    def _scale(self, knobs: Knobs) -> float:
        return math.prod(knobs[k.name] if k.power_rises else 1 / knobs[k.name] for k in self._device.knobs)

    # ------------------------------------------------------------------------------------------------------- readings

    def __call__(self, time_s: float, power_w: float) -> bool:
        """Answer one reading: ``power_w`` watts at ``time_s`` seconds of the run.

        Returns: whether the reading is of the present setting; False if power from before may be in it, or ended a
        probe. Raises: DeviceError.
        """
        with self._lock:
            self.power_w = power_w
            try:
                temperature_c = self._temperature_c(time_s)
                return self._blind is not None or self._answer(time_s, power_w, temperature_c)
            except Exception as error:
                self.failure = error
                raise

    def _temperature_c(self, time_s: float) -> float | None:
        if self.limit.max_temp_c is None:
            return None
        temperature_c = self._device.conditions().temperature_c
        if self._felt_s is None or temperature_c is not None:
            self._felt_s = time_s
        elif time_s - self._felt_s > GONE_AFTER_S and self._blind is None:
            self._blind = f"no temperature for over {GONE_AFTER_S:g} s under a limit of {self.limit.max_temp_c:g} °C"
            self._go(self._device.safest)
        return temperature_c

    def _answer(self, time_s: float, power_w: float, temperature_c: float | None) -> bool:
        self._window.add(self._device.now_s(), power_w)
        too_much, mean_w = self._window.is_above, self._window.mean_w
        guard = self._work if self._evaluation is None else self._evaluation
        if too_much or (guard.is_lowest and guard.is_above) or is_too_hot(temperature_c, self.limit.max_temp_c):
            self._exceeded = mean_w, temperature_c
        now_s, sensor = self._device.now_s(), self._device.sensor
        if now_s < self._quiet_until_s:
            if too_much and self._blames_work:
                self._blame(time_s, power_w, temperature_c)
            elif too_much:
                guard(time_s, power_w, temperature_c, is_old=True)
            return not too_much
        if too_much:
            self._exceeds_until_s = now_s + sensor.settle_s
        if too_much and self._probing:
            self.was_early = now_s - self._moved_s < sensor.lag_s + sensor.period_s
            self.crossed_w, self._probing = mean_w, False
            guard.drop(time_s, mean_w)
            self._moved_s, self._quiet_until_s = now_s, now_s + sensor.settle_s
            return False
        before = guard.value
        if self._probing and not is_too_hot(temperature_c, self.limit.max_temp_c):
            guard.watch(time_s, power_w)  # the window judges probes: they end for good
        else:
            guard(time_s, power_w, temperature_c)
        if self._probing and guard.value != before:  # too hot, in the middle of a probe
            self.crossed_w, self._probing = mean_w, False
        return True

    # ----------------------------------------------------------------------------------------------------- evaluation

    def begin_evaluation(self) -> None:
        """Go to a setting at which evaluations have stayed below the cap. At first that is the work's, with the first
        knob at its safest value: at its lowest CPU clock a board would take minutes."""
        with self._lock:
            knobs = self._setting.knobs
            self._was_probing, self._probing = self._probing, False
            if knobs and self.limit.limit_w is not None:
                self._blames_work = True
                rungs = self._device.ladder(self._work.value)
                self._evaluation = self._new_guard(rungs, self._work, self._setting.change, CLIMBS_PER_S)
                at = next(i for i in reversed(range(len(rungs))) if self._is_below(rungs[i], self._reached))
                self._go(rungs[at])
                self._evaluation.begin_at(at)

    def end_evaluation(self) -> None:
        """Go back to the setting of the work."""
        with self._lock:
            self._probing = self._was_probing
            if self._evaluation is not None:
                self._reached = self._evaluation.value
                self._evaluation, self._blames_work = None, False
                self._go(self._work.value)
                self._work.level.start_at(self._work.level.setting)

    def _blame(self, time_s: float, power_w: float, temperature_c: float | None) -> None:
        # The device is lower already; what this leads to is done when the evaluation is over.
        self._blames_work = False
        if self._was_probing:
            self.crossed_w, self._was_probing = power_w, False
            self._work.drop(time_s, power_w)
        else:
            self._work(time_s, power_w, temperature_c)

    # ---------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """State from which a later limiter continues, as JSON values."""
        work = self._work.state_dict()
        return {
            **work,
            "setting": dict(work["setting"] or {}),
            "events": [{**event, "setting": dict(event["setting"] or {})} for event in work["events"]],
            "top": dict(self.top),
            "quiet_s": self.quiet_s,
            "reached": dict(self._reached if self._evaluation is None else self._evaluation.value),
            "reached_under_w": self.limit.limit_w,
            "window": self._window.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``, at the setting of then. Raises: InputError, DeviceError."""
        top = self._device.knobs_from(state["top"])
        if top != self.top:
            self.move(top)
        self._quiet_until_s = self._device.now_s() + state.get("quiet_s", 0.0)
        events = [*state.get("before", ()), *state["events"]]  # "before": of guards before the last move, until 0.1.0
        knobs_from = self._device.knobs_from
        self._work.load_state_dict(
            {
                **state,
                "setting": knobs_from(state["setting"]) or None,
                "events": self._events_from(events),
            }
        )
        self._load_reached(state)
        if "window" in state:  # not in states of before caps had one
            self._window.load_state_dict(state["window"])

    def remember(self, state: dict[str, Any]) -> None:
        """Take from an earlier ``state_dict`` what holds at any setting: its events, and how far evaluations came."""
        saved = {"events": self._events_from(state["events"]), "events_left_out": state.get("events_left_out", 0)}
        self._work.load_state_dict({**self._work.state_dict(), **saved})
        self._load_reached(state)

    def _events_from(self, saved: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**event, "setting": self._device.knobs_from(event["setting"]) or None} for event in saved]

    def _load_reached(self, state: dict[str, Any]) -> None:
        # Under a lower cap than before, evaluations climb from the safest setting again.
        under_w, limit_w = state.get("reached_under_w"), self.limit.limit_w
        if "reached" in state and (limit_w is None or (under_w is not None and limit_w >= under_w)):
            self._reached = self._device.knobs_from(state["reached"])


def _first_lowered(device: Device) -> Knobs:
    """The first knob at its safest value, and the others where they draw most."""
    return device.safest.replace(**{knob.name: knob.by_power[-1] for knob in device.knobs[1:]})
