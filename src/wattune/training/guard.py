"""The cap guard: watches every reading of the power sensor while training and answers those above the cap."""

from __future__ import annotations

import threading
from typing import Any

from wattune.devices.base import Device, Setting
from wattune.errors import DeviceError
from wattune.records import GuardEvent

UP_AFTER_S = 10.0
"""Time below ``UP_BELOW`` of the cap after which the guard goes one setting up again."""

UP_BELOW = 0.97
"""Share of the cap that readings must stay below before the guard goes up again."""

PATIENCE_S = 10.0
"""At the lowest setting: net time above the cap (time above less time not above) after which training must stop."""


class Guard:
    """One setting down at a reading above the cap, again while it lasts, and up again when it is over.

    Call it with each reading: ``guard(time_s, power_w)``. It decides by these rules:

    - A reading above the cap is answered at once by the next lower setting. For ``sensor.settle_s`` after that,
      readings may still hold power from before the change: what they say is answered already. The first reading
      above the cap after that time is answered again. So one noisy reading costs one step, and what lasts costs
      one step each ``settle_s``.
    - One setting up, never beyond the planned one, once all readings of the last ``UP_AFTER_S`` seconds were
      below ``UP_BELOW`` of the cap.
    - Back-off: a setting that the guard was pushed down from is tried again ``UP_AFTER_S`` after the change at
      the earliest, and twice as late each further time. Its number of changes therefore grows with the
      logarithm of the training time only, whatever the sensor says.
    - At the lowest setting nothing is left to be done. The event is recorded, and after ``PATIENCE_S`` of net time
      above the cap ``stopped`` becomes true: the training loop then has to end.

    It may be called from a sampling thread. Without a cap (None) it does nothing.
    """

    def __init__(self, device: Device, setting: Setting, cap_w: float | None):
        self.cap_w = cap_w
        self.settle_s = device.sensor.settle_s
        self.failure: DeviceError | None = None  # of the device, when its setting was to be changed
        self._setting = setting
        planned = setting.value
        self._settings = tuple(s for s in device.settings if planned is not None and s <= planned)
        self._lock = threading.Lock()
        self._events: list[GuardEvent] = []
        self._stopped = False
        self._changed_s: float | None = None
        self._went_down = False
        self._below_since_s: float | None = None
        self._waits_s: dict[float, float] = {}
        self._last_s: float | None = None
        self._over_s = 0.0
        self._told_lowest = False

    @property
    def events(self) -> tuple[GuardEvent, ...]:
        """What the guard did so far."""
        with self._lock:
            return tuple(self._events)

    @property
    def has_read(self) -> bool:
        """Whether there was a reading."""
        return self._last_s is not None

    @property
    def stopped(self) -> bool:
        """Whether the cap cannot be kept at the lowest setting, so that training has to end."""
        return self._stopped

    def __call__(self, time_s: float, power_w: float) -> None:
        """Answer one reading: ``power_w`` watts at ``time_s`` seconds of training. Raises: DeviceError."""
        with self._lock:
            elapsed_s = 0.0 if self._last_s is None else time_s - self._last_s
            self._last_s = time_s
            if self.cap_w is None:
                return
            settled = self._changed_s is None or time_s >= self._changed_s + self.settle_s
            if power_w > self.cap_w:
                self._below_since_s = None
                # After a step up, older power in the reading is lower: above the cap is above the cap.
                if settled or not self._went_down:
                    self._above(time_s, power_w, elapsed_s)
                return
            self._over_s = max(0.0, self._over_s - elapsed_s)
            if not settled:
                return
            if power_w >= UP_BELOW * self.cap_w:
                self._below_since_s = None
            else:
                self._below(time_s, power_w)

    def _above(self, time_s: float, power_w: float, elapsed_s: float) -> None:
        value = self._setting.value
        if value is not None and value > self._settings[0]:
            # Doubled before the change: a device that fails to change leaves the guard as careful as can be.
            self._waits_s[value] = 2 * self._waits_s[value] if value in self._waits_s else UP_AFTER_S
            self._change(self._settings[self._settings.index(value) - 1], time_s, power_w, down=True)
            return
        if not self._told_lowest:
            self._told_lowest = True
            self._events.append(GuardEvent(time_s=time_s, power_w=power_w, action="at lowest", setting=value))
        self._over_s += elapsed_s
        self._stopped = self._stopped or self._over_s >= PATIENCE_S

    def _below(self, time_s: float, power_w: float) -> None:
        if self._below_since_s is None:
            self._below_since_s = time_s
        value = self._setting.value
        if value is None or value == self._settings[-1] or self._changed_s is None:
            return
        target = self._settings[self._settings.index(value) + 1]
        wait_s = self._waits_s.get(target, UP_AFTER_S)
        if time_s - self._below_since_s >= UP_AFTER_S and time_s - self._changed_s >= wait_s:
            self._change(target, time_s, power_w, down=False)

    def _change(self, value: float, time_s: float, power_w: float, *, down: bool) -> None:
        try:
            self._setting.change(value)
        except DeviceError as error:
            self.failure = error
            raise
        self._changed_s, self._went_down = time_s, down
        self._below_since_s, self._over_s, self._told_lowest = None, 0.0, False
        action = "down" if down else "up"
        self._events.append(GuardEvent(time_s=time_s, power_w=power_w, action=action, setting=value))

    def state_dict(self) -> dict[str, Any]:
        """What a later guard needs to go on from here, as JSON values."""
        with self._lock:
            return {
                "setting": self._setting.value,
                "events": [event.model_dump() for event in self._events],
                "stopped": self._stopped,
                "changed_s": self._changed_s,
                "went_down": self._went_down,
                "below_since_s": self._below_since_s,
                "waits_s": [[value, wait_s] for value, wait_s in sorted(self._waits_s.items())],
                "last_s": self._last_s,
                "over_s": self._over_s,
                "told_lowest": self._told_lowest,
            }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``; brings the device to the setting of then. Raises: InputError, DeviceError."""
        with self._lock:
            if state["setting"] is not None and state["setting"] != self._setting.value:
                self._setting.change(state["setting"])
            self._events = [GuardEvent(**event) for event in state["events"]]
            self._stopped = state["stopped"]
            self._changed_s = state["changed_s"]
            self._went_down = state["went_down"]
            self._below_since_s = state["below_since_s"]
            self._waits_s = dict(state["waits_s"])
            self._last_s = state["last_s"]
            self._over_s = state["over_s"]
            self._told_lowest = state["told_lowest"]
