"""The rule by which a clock follows a cap: one setting down at a reading above it, carefully up again."""

import threading
from typing import Any, Callable, Dict, List, Optional, Sequence

__all__ = [
    "COOL_BY_C",
    "HEAT_PATIENCE_S",
    "HEAT_WAIT_S",
    "PATIENCE_S",
    "UP_AFTER_S",
    "UP_BELOW",
    "CapGuard",
    "told",
]

UP_AFTER_S = 10.0
"""Time below ``UP_BELOW`` of the cap after which the guard goes one setting up again."""

UP_BELOW = 0.97
"""Share of the cap that readings must stay below before the guard goes up again."""

PATIENCE_S = 10.0
"""At the lowest setting: net time above the cap (time above less time not above) after which the work must stop."""

HEAT_WAIT_S = 10.0
"""Time after a change before a temperature above its limit is answered again: a board cools in tens of seconds."""

HEAT_PATIENCE_S = 60.0
"""As ``PATIENCE_S``, for a board that is too hot while its power is below the cap."""

GAP_S = 2.0
"""A reading stands for so long at most, or for as long as its sensor needs; what came after it nobody has seen."""

COOL_BY_C = 3.0
"""Kelvin below the limit that the temperature must stay before the guard goes up again."""


class CapGuard:
    """One setting down at a reading above the cap, again while it lasts, and up again when it is over.

    Call it with each reading: ``guard(time_s, power_w)``. It decides by these rules:

    - A reading above the cap is answered at once by the next lower setting. For ``settle_s`` after that, readings may
      still hold power from before the change: what they say is answered already. The first reading above the cap
      after that time is answered again. So one noisy reading costs one step, and what lasts costs one step each
      ``settle_s``.
    - One setting up, never beyond the first one, once all readings of the last ``UP_AFTER_S`` seconds were below
      ``UP_BELOW`` of the cap.
    - Back-off: a setting that the guard was pushed down from is tried again ``UP_AFTER_S`` after the change at the
      earliest, and twice as late each further time. Its number of changes therefore grows with the logarithm of the
      time only, whatever the sensor says.
    - At the lowest setting nothing is left to be done. The event is recorded, and after ``PATIENCE_S`` of net time
      above the cap ``stopped`` becomes true: the work then has to end.
    - Too hot counts as above the cap, with the slower times that heat needs: it is answered again after
      ``HEAT_WAIT_S``, and the patience at the lowest setting is ``HEAT_PATIENCE_S``. The way up needs ``COOL_BY_C``.

    ``settings`` ascend; those above ``value``, the first one, are never used. ``change`` brings the board to a
    setting; what it raises is kept as ``failure`` and raised again. A guard may be called from a sampling thread.
    Without a cap and a limit (None) it does nothing.
    """

    def __init__(
        self,
        settings: Sequence[float],
        value: Optional[float],
        change: Callable[[float], None],
        cap_w: Optional[float],
        settle_s: float,
        max_temp_c: Optional[float] = None,
    ) -> None:
        self.cap_w = cap_w
        self.max_temp_c = max_temp_c
        self.settle_s = settle_s
        self.failure: Optional[Exception] = None
        """What ``change`` raised."""
        self._settings = tuple(s for s in settings if value is not None and s <= value)
        self._value = value
        self._set = change
        self._lock = threading.RLock()
        self._events: List[Dict[str, Any]] = []
        self._stopped = False
        self._changed_s: Optional[float] = None
        self._went_down = False
        self._below_since_s: Optional[float] = None
        self._waits_s: Dict[float, float] = {}
        self._last_s: Optional[float] = None
        self._over_s = 0.0
        self._told_lowest = False

    @property
    def value(self) -> Optional[float]:
        """The present setting; None where the board has none."""
        return self._value

    @property
    def events(self) -> List[Dict[str, Any]]:
        """What the guard did so far: ``time_s``, ``power_w``, ``action`` ("down", "up" or "at lowest"), ``setting``,
        and ``temperature_c`` where there is a limit on it."""
        with self._lock:
            return [dict(event) for event in self._events]

    @property
    def has_read(self) -> bool:
        """Whether there was a reading."""
        return self._last_s is not None

    @property
    def stopped(self) -> bool:
        """Whether the cap cannot be kept at the lowest setting, so that the work has to end."""
        return self._stopped

    def __call__(self, time_s: float, power_w: float, temperature_c: Optional[float] = None) -> None:
        """Answer one reading of ``power_w`` watts at ``time_s`` seconds. Raises: what ``change`` raises."""
        with self._lock:
            elapsed_s = 0.0 if self._last_s is None else min(time_s - self._last_s, max(GAP_S, self.settle_s))
            self._last_s = time_s
            if self.cap_w is None and self.max_temp_c is None:
                return
            event = {"time_s": time_s, "power_w": power_w}
            if self.max_temp_c is not None and temperature_c is not None:
                event["temperature_c"] = temperature_c
            too_much = self.cap_w is not None and power_w > self.cap_w
            too_hot = self.max_temp_c is not None and temperature_c is not None and temperature_c > self.max_temp_c
            if too_much or too_hot:
                self._below_since_s = None
                settle_s = self.settle_s if too_much else max(self.settle_s, HEAT_WAIT_S)
                # After a step up, older power in the reading is lower: above the cap is above the cap.
                if self._is_settled(time_s, settle_s) or not self._went_down:
                    self._above(event, elapsed_s if too_much else elapsed_s * PATIENCE_S / HEAT_PATIENCE_S)
                return
            self._over_s = max(0.0, self._over_s - elapsed_s)
            if not self._is_settled(time_s, self.settle_s):
                return
            if self._is_well_below(power_w, temperature_c):
                self._below(event)
            else:
                self._below_since_s = None

    def follow(self, value: Optional[float]) -> None:
        """Go on from ``value``, one of the settings, to which somebody else brought the board."""
        with self._lock:
            if value != self._value:
                self._value, self._told_lowest = value, False

    def _is_settled(self, time_s: float, settle_s: float) -> bool:
        return self._changed_s is None or time_s >= self._changed_s + settle_s

    def _is_well_below(self, power_w: float, temperature_c: Optional[float]) -> bool:
        if self.cap_w is not None and power_w >= UP_BELOW * self.cap_w:
            return False
        if self.max_temp_c is None:
            return True
        return temperature_c is not None and temperature_c < self.max_temp_c - COOL_BY_C

    def _above(self, event: Dict[str, Any], elapsed_s: float) -> None:
        value = self._value
        if value is not None and value > self._settings[0]:
            # Doubled before the change: a board that fails to change leaves the guard as careful as can be.
            self._waits_s[value] = 2 * self._waits_s[value] if value in self._waits_s else UP_AFTER_S
            self._change(self._settings[self._settings.index(value) - 1], event, down=True)
            return
        if not self._told_lowest:
            self._told_lowest = True
            self._events.append(dict(event, action="at lowest", setting=value))
        self._over_s += elapsed_s
        self._stopped = self._stopped or self._over_s >= PATIENCE_S

    def _below(self, event: Dict[str, Any]) -> None:
        time_s = event["time_s"]
        if self._below_since_s is None:
            self._below_since_s = time_s
        value = self._value
        if value is None or value == self._settings[-1] or self._changed_s is None:
            return
        target = self._settings[self._settings.index(value) + 1]
        wait_s = self._waits_s.get(target, UP_AFTER_S)
        if time_s - self._below_since_s >= UP_AFTER_S and time_s - self._changed_s >= wait_s:
            self._change(target, event, down=False)

    def _change(self, value: float, event: Dict[str, Any], *, down: bool) -> None:
        try:
            self._set(value)
        except Exception as error:
            self.failure = error
            raise
        self._value = value
        self._changed_s, self._went_down = event["time_s"], down
        self._below_since_s, self._over_s, self._told_lowest = None, 0.0, False
        self._events.append(dict(event, action="down" if down else "up", setting=value))

    def state_dict(self) -> Dict[str, Any]:
        """What a later guard needs to go on from here, as JSON values."""
        with self._lock:
            return {
                "setting": self._value,
                "events": [dict(event) for event in self._events],
                "stopped": self._stopped,
                "changed_s": self._changed_s,
                "went_down": self._went_down,
                "below_since_s": self._below_since_s,
                "waits_s": [[value, wait_s] for value, wait_s in sorted(self._waits_s.items())],
                "last_s": self._last_s,
                "over_s": self._over_s,
                "told_lowest": self._told_lowest,
            }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Go on from ``state_dict``; brings the board to the setting of then. Raises: what ``change`` raises."""
        with self._lock:
            if state["setting"] is not None and state["setting"] != self._value:
                self._set(state["setting"])
                self._value = state["setting"]
            self._events = [dict(event) for event in state["events"]]
            self._stopped = state["stopped"]
            self._changed_s = state["changed_s"]
            self._went_down = state["went_down"]
            self._below_since_s = state["below_since_s"]
            self._waits_s = dict(state["waits_s"])
            self._last_s = state["last_s"]
            self._over_s = state["over_s"]
            self._told_lowest = state["told_lowest"]


def told(
    event: Dict[str, Any], cap_w: Optional[float] = None, max_temp_c: Optional[float] = None, unit: str = "MHz"
) -> str:
    """One of the guard's events in words, with the limits that it is about where they are given."""
    said = "{:.2f} W".format(event["power_w"])
    if cap_w is not None:
        said += " under a cap of {:g} W".format(cap_w)
    if "temperature_c" in event:
        said += ", {:.1f} C".format(event["temperature_c"])
        if max_temp_c is not None:
            said += " with a limit of {:g} C".format(max_temp_c)
    if event["action"] == "at lowest":
        return said + " at the lowest clock"
    return "{}: {} to {:g} {}".format(said, event["action"], event["setting"], unit)
