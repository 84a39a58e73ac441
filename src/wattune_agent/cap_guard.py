"""The rule that keeps a clock under a cap: down at a reading above the cap, cautiously up again.

Everything that keeps a board below a limit, in wattune and in the agent, asks ``is_above`` and ``is_too_hot``, and
changes settings as ``CapGuard`` decides.
"""

import threading
from typing import Any, Callable, Dict, List, Optional, Sequence

from wattune_agent.cap_window import CapWindow

__all__ = [
    "COOL_BY_C",
    "HEAT_PATIENCE_S",
    "HEAT_WAIT_S",
    "PATIENCE_S",
    "UP_AFTER_S",
    "UP_BELOW",
    "CapGuard",
    "is_above",
    "is_too_hot",
    "told",
]

UP_AFTER_S = 10.0
"""Time below ``UP_BELOW`` of the cap after which the guard goes one setting up again."""

UP_BELOW = 0.97
"""Share of the cap that readings must stay below before the guard goes up again."""

PATIENCE_S = 10.0
"""At the lowest setting: net time above the cap (time above minus time not above) after which the work must stop."""

HEAT_WAIT_S = 10.0
"""Time after a change before the guard reacts to a high temperature again: a board cools in tens of seconds."""

HEAT_PATIENCE_S = 60.0
"""The same as ``PATIENCE_S``, for a board that is too hot while its power is below the cap."""

GAP_S = 2.0
"""Longest time that one reading counts for, unless its sensor needs longer; anything after that went unobserved."""

COOL_BY_C = 3.0
"""Kelvin below the limit that the temperature must stay before the guard goes up again."""


def is_above(power_w: float, cap_w: Optional[float]) -> bool:
    """True if a reading exceeds the cap. A reading at the cap does not; without a cap (None), none does."""
    return cap_w is not None and power_w > cap_w


def is_too_hot(temperature_c: Optional[float], max_temp_c: Optional[float]) -> bool:
    """True if a temperature exceeds its limit. An unknown one (None) does not; without a limit (None), none does."""
    return max_temp_c is not None and temperature_c is not None and temperature_c > max_temp_c


class _Patience:
    """Net time above a limit at the lowest setting, over all guards of one run."""

    def __init__(self) -> None:
        self.last_s: Optional[float] = None
        self.over_s = 0.0
        self.stopped = False

    def elapsed_s(self, time_s: float, longest_s: float) -> float:
        """Seconds that a reading at ``time_s`` accounts for."""
        elapsed_s = 0.0 if self.last_s is None else min(time_s - self.last_s, longest_s)
        self.last_s = time_s
        return elapsed_s

    def lose(self, seconds: float) -> None:
        """Count time above a limit."""
        self.over_s += seconds
        self.stopped = self.stopped or self.over_s >= PATIENCE_S

    def regain(self, seconds: float) -> None:
        """Count time that was not above a limit."""
        self.over_s = max(0.0, self.over_s - seconds)


class CapGuard:
    """One setting down at a reading above the cap, further down while that lasts, and up again when it is over.

    Call it with each reading: ``guard(time_s, power_w)``. It decides by these rules:

    - A reading above the cap lowers the setting by one at once. For ``settle_s`` after that, readings may still
      include power from before the change and are ignored. If the first reading after that time is above the cap too,
      the setting is lowered by the ratio of the cap to the reading, at least by one. Power falls faster than the
      setting, apart from the share that does not depend on it, so that a lasting excess ends within a few readings
      however many settings there are, and one noisy reading costs one step.
    - One setting up, never beyond the last of the ladder, once all readings of the last ``UP_AFTER_S`` seconds were
      below ``UP_BELOW`` of the cap.
    - Back-off: a setting that the guard had to leave is tried again ``UP_AFTER_S`` after the change at the
      earliest, and after twice that time on each further attempt. The number of changes therefore grows only with
      the logarithm of time, whatever the sensor reads.
    - At the lowest setting the guard cannot go lower. It records the event, and after ``PATIENCE_S`` of net time
      above the cap ``stopped`` becomes true: the work then has to end.
    - Too hot counts as above the cap, with the longer times that heat needs: the guard reacts again after
      ``HEAT_WAIT_S``, and the patience at the lowest setting is ``HEAT_PATIENCE_S``. The way up needs ``COOL_BY_C``.

    ``ladder``: the settings that may be used, ascending; empty if the board has none. The board is at the last one, or,
    if nothing is pinned yet, near ``free_at``, one of them: the guard then begins there, and pins the lowest setting
    before it counts the board as being at it.
    ``change`` applies a setting to the board; an exception that it raises is stored as ``failure`` and raised again.
    ``scale`` is the number that power falls with, such as the clock of a setting that is not a number itself.
    ``after`` is an earlier guard of the same run, whose events and patience this one continues. A guard may be called
    from a sampling thread. Without a cap and without a temperature limit (both None) it does nothing.
    """

    def __init__(
        self,
        ladder: Sequence[Any],
        change: Callable[[Any], None],
        cap_w: Optional[float],
        settle_s: float,
        max_temp_c: Optional[float] = None,
        after: Optional["CapGuard"] = None,
        free_at: Any = None,
        scale: Callable[[Any], float] = float,
        window: Optional[CapWindow] = None,
    ) -> None:
        self.cap_w = cap_w
        self._window = window
        self.max_temp_c = max_temp_c
        self.settle_s = settle_s
        self.failure: Optional[Exception] = None
        """The exception that ``change`` raised."""
        self.may_rise: Callable[[Any], bool] = lambda value: True
        """False for a setting that the guard should not try, although the present one stays well below the cap."""
        self.pushed = 0
        """Number of times that the guard went down from its first setting."""
        self._ladder = tuple(ladder)
        self._value = free_at if free_at is not None else self._ladder[-1] if self._ladder else None
        self._is_held = free_at is None
        self._set = change
        self._scale = scale
        self._lock = threading.RLock()
        self._events: List[Dict[str, Any]] = [] if after is None else after._events
        self._patience: _Patience = _Patience() if after is None else after._patience
        self._changed_s: Optional[float] = None
        self._went_down = False
        self._is_lasting = False  # no reading since the last step down was below the limits
        self._below_since_s: Optional[float] = None
        self._waits_s: Dict[Any, float] = {}
        self._told_lowest = False

    @property
    def value(self) -> Any:
        """The current setting; None if the board has none."""
        return self._value

    @property
    def events(self) -> List[Dict[str, Any]]:
        """The guard's actions so far: ``time_s``, ``power_w``, ``action`` ("down", "up" or "at lowest"), ``setting``,
        and ``temperature_c`` if there is a limit on it."""
        with self._lock:
            return [dict(event) for event in self._events]

    @property
    def has_read(self) -> bool:
        """True after the first reading."""
        return self._patience.last_s is not None

    @property
    def stopped(self) -> bool:
        """True once power or temperature stays above its limit at the lowest setting: the work has to end."""
        return self._patience.stopped

    def __call__(
        self, time_s: float, power_w: float, temperature_c: Optional[float] = None, *, is_old: bool = False
    ) -> None:
        """React to a reading of ``power_w`` watts at ``time_s`` seconds. Raises: any exception of ``change``.

        ``is_old``: the reading still includes power from before this guard began. Above a limit it changes nothing, but
        the patience at the lowest setting counts it.
        """
        with self._lock:
            elapsed_s = self._patience.elapsed_s(time_s, max(GAP_S, self.settle_s))
            if self.cap_w is None and self.max_temp_c is None:
                return
            too_much, too_hot = is_above(power_w, self.cap_w), is_too_hot(temperature_c, self.max_temp_c)
            if self._window is not None:
                too_much, power_w = self._window.is_above, self._window.mean_w
            event = {"time_s": time_s, "power_w": power_w}
            if self.max_temp_c is not None and temperature_c is not None:
                event["temperature_c"] = temperature_c
            if too_much or too_hot:
                self._below_since_s = None
                over_s = elapsed_s if too_much else elapsed_s * PATIENCE_S / HEAT_PATIENCE_S
                settle_s = self.settle_s if too_much else max(self.settle_s, HEAT_WAIT_S)
                if is_old:
                    if self._is_lowest:
                        self._patience.lose(over_s)
                # After a step up, power from before it is lower, so a reading above the cap is real.
                elif self._is_settled(time_s, settle_s) or not self._went_down:
                    self._above(event, over_s)
                return
            self._patience.regain(elapsed_s)
            self._is_lasting = False
            if not self._is_settled(time_s, self.settle_s):
                return
            if self._is_well_below(power_w, temperature_c):
                self._below(event)
            else:
                self._below_since_s = None

    def drop(self, time_s: float, power_w: float) -> None:
        """React to a reading by the lowest setting at once, and stay there. Raises: any exception of ``change``."""
        with self._lock:
            elapsed_s = self._patience.elapsed_s(time_s, max(GAP_S, self.settle_s))
            event = {"time_s": time_s, "power_w": power_w}
            if self._is_lowest:
                self._told_lowest = False
                self._above(event, elapsed_s)
            else:
                self._change(self._ladder[0], event, down=True)
            self._ladder = self._ladder[:1]

    def follow(self, value: Any, *, is_held: bool = True) -> None:
        """Continue from ``value``, one of the settings: another controller pinned the board there, or, if it is not
        held, the board chose a clock near it."""
        with self._lock:
            if value != self._value or is_held != self._is_held:
                self._value, self._is_held, self._told_lowest = value, is_held, False

    def move_cap(self, cap_w: Optional[float]) -> None:
        """React to readings above another cap from now on. What was learned of settings above a lower one is
        forgotten; the window, if there is one, has to be moved as well."""
        with self._lock:
            if cap_w is None or (self.cap_w is not None and cap_w > self.cap_w):
                self._waits_s.clear()
            self.cap_w, self._told_lowest, self._is_lasting = cap_w, False, False

    def jump(self, value: Any, time_s: float, power_w: float) -> None:
        """Go to a setting at once, and continue from there. Raises: any exception of ``change``."""
        with self._lock:
            if value != self._value or not self._is_held:
                is_down = self._ladder.index(value) < self._ladder.index(self._value) or not self._is_held
                self._change(value, {"time_s": time_s, "power_w": power_w}, down=is_down)

    @property
    def _is_lowest(self) -> bool:
        return self._value is None or (self._is_held and self._value == self._ladder[0])

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
        if not self._is_lowest:
            # Doubled before the change: a board that fails to change leaves the guard as careful as can be.
            self._waits_s[value] = 2 * self._waits_s[value] if value in self._waits_s else UP_AFTER_S
            self._change(self._lower(event["power_w"]), event, down=True)
            self._is_lasting = True
            return
        if not self._told_lowest:
            self._told_lowest = True
            self._events.append(dict(event, action="at lowest", setting=value))
        self._patience.lose(elapsed_s)

    def _lower(self, power_w: float) -> Any:
        """The setting to go down to at a reading above a limit."""
        now: Any = self._value
        steps = self._ladder[: max(1, self._ladder.index(now))]
        if not self._is_lasting or not is_above(power_w, self.cap_w):
            return steps[-1]
        assert self.cap_w is not None
        most = self._scale(now) * self.cap_w
        enough = [value for value in steps if self._scale(value) * power_w <= most]
        return enough[-1] if enough else steps[0]

    def _below(self, event: Dict[str, Any]) -> None:
        time_s = event["time_s"]
        if self._below_since_s is None:
            self._below_since_s = time_s
        value = self._value
        if value is None or value == self._ladder[-1] or self._changed_s is None:
            return
        target = self._ladder[self._ladder.index(value) + 1]
        wait_s = self._waits_s.get(target, UP_AFTER_S)
        if not self.may_rise(target):
            return
        if time_s - self._below_since_s >= UP_AFTER_S and time_s - self._changed_s >= wait_s:
            self._change(target, event, down=False)

    def _change(self, value: Any, event: Dict[str, Any], *, down: bool) -> None:
        try:
            self._set(value)
        except Exception as error:
            self.failure = error
            raise
        self.pushed += down and self._value == self._ladder[-1]
        self._value, self._is_held = value, True
        self._changed_s, self._went_down, self._is_lasting = event["time_s"], down, False
        self._below_since_s, self._told_lowest = None, False
        if self._window is not None:
            self._window.restart(self.settle_s)
        self._events.append(dict(event, action="down" if down else "up", setting=value))

    def state_dict(self) -> Dict[str, Any]:
        """The state from which a later guard continues, as JSON values."""
        with self._lock:
            return {
                "setting": self._value,
                "events": [dict(event) for event in self._events],
                "stopped": self._patience.stopped,
                "changed_s": self._changed_s,
                "went_down": self._went_down,
                "below_since_s": self._below_since_s,
                "waits_s": [[value, self._waits_s[value]] for value in self._ladder if value in self._waits_s],
                "last_s": self._patience.last_s,
                "over_s": self._patience.over_s,
                "told_lowest": self._told_lowest,
            }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Continue from ``state_dict``, after applying its setting to the board. Raises: as ``change`` does."""
        with self._lock:
            if state["setting"] is not None and state["setting"] != self._value:
                self._set(state["setting"])
                self._value = state["setting"]
            self._events[:] = [dict(event) for event in state["events"]]
            self._patience.stopped = state["stopped"]
            self._patience.last_s = state["last_s"]
            self._patience.over_s = state["over_s"]
            self._changed_s = state["changed_s"]
            self._went_down = state["went_down"]
            self._below_since_s = state["below_since_s"]
            self._waits_s = dict(state["waits_s"])
            self._told_lowest = state["told_lowest"]


def told(
    event: Dict[str, Any], cap_w: Optional[float] = None, max_temp_c: Optional[float] = None, unit: str = "MHz"
) -> str:
    """One of the guard's events in words, with the limits that it concerns if they are given."""
    text = "{:.2f} W".format(event["power_w"])
    if cap_w is not None:
        text += " with a cap of {:g} W".format(cap_w)
    if "temperature_c" in event:
        text += ", {:.1f} C".format(event["temperature_c"])
        if max_temp_c is not None:
            text += " with a limit of {:g} C".format(max_temp_c)
    if event["action"] == "at lowest":
        return text + " at the lowest clock"
    return "{}: {} to {:g} {}".format(text, event["action"], event["setting"], unit)
