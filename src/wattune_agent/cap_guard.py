"""The guard of a clock under a cap and below a temperature: ``CapLevel``'s decisions, applied to a board.

Everything that keeps a board below a limit, in wattune and in the agent, asks ``is_above`` and ``is_too_hot``, and
changes settings as ``CapGuard`` decides.
"""

import math
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence

from wattune_agent.cap_level import PEAK_S, CapLevel
from wattune_agent.kept import Kept

PATIENCE_S = 10.0
"""At the lowest setting: net time above the cap (time above minus time not above) after which the work must stop."""

HEAT_WAIT_S = 10.0
"""Time between two steps of the guard because of heat: a board cools in tens of seconds."""

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
        elapsed_s = 0.0 if self.last_s is None else max(0.0, min(time_s - self.last_s, longest_s))
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
    """A board at the setting that ``level`` decides, and below a temperature.

    Call it with each reading: ``guard(time_s, power_w)``. Beside the rule of ``CapLevel``:

    - Too hot costs one setting each ``HEAT_WAIT_S``. The settings come back one by one, ``HEAT_WAIT_S`` apart, while
      the temperature is ``COOL_BY_C`` below its limit.
    - At the lowest setting the guard cannot go lower. It records the event, and after ``PATIENCE_S`` of net time above
      the cap (``HEAT_PATIENCE_S`` above the temperature) ``stopped`` becomes true: the work then has to end.

    ``ladder``: the settings that may be used, ascending; empty if the board has none. The board is at the last one, or,
    if nothing is pinned yet, near ``free_at``, one of them: the guard then pins the lowest setting before it counts the
    board as being at it. ``change`` applies a setting to the board; an exception that it raises is raised again.
    ``after`` is an earlier guard of the same run, whose events and patience this one continues. ``switch`` is
    ``change`` for the slices of a level that has some; ``tick`` is then due between readings. If it fails, that is
    stored as ``slices_failed``, and the lower setting is held from then on. A guard may be called from a sampling
    thread. Without a cap and without a temperature limit (both None) it does nothing.
    """

    def __init__(
        self,
        ladder: Sequence[Any],
        change: Callable[[Any], None],
        level: CapLevel,
        max_temp_c: Optional[float] = None,
        after: Optional["CapGuard"] = None,
        free_at: Any = None,
        switch: Optional[Callable[[Any], None]] = None,
    ) -> None:
        self.level = level
        self.max_temp_c = max_temp_c
        self.pushed = 0
        """Number of times that the guard went down from its highest setting."""
        self.slices_failed: Optional[Exception] = None
        """The exception that ``switch`` raised."""
        self._ladder = tuple(ladder)
        self.is_held = free_at is None
        """False while the board chooses its clock."""
        if free_at is not None:
            level.start_at(self._ladder.index(free_at))
        self.value: Any = self._ladder[level.setting] if self._ladder else None
        """The current setting; None if the board has none."""
        self._set = change
        self._switch = switch
        self._told = level.setting  # the whole setting of the last event, while slices are used
        self._left_s: Optional[float] = None  # since when the level has been at another one
        self._lock = threading.RLock()
        self._events: Kept = Kept() if after is None else after._events
        self._patience: _Patience = _Patience() if after is None else after._patience
        self._heat_s: Optional[float] = None  # when heat last lowered the highest setting that may be used
        self._cool_s: Optional[float] = None  # since when it is cool
        self._told_lowest = False

    @property
    def cap_w(self) -> Optional[float]:
        """The cap that is held; None without a cap."""
        return self.level.cap_w

    @property
    def events(self) -> List[Dict[str, Any]]:
        """The guard's actions so far, of very many the first and the newest: ``time_s``, ``power_w``, ``action``
        ("down", "up" or "at lowest"), ``setting``, and ``temperature_c`` if there is a limit on it. ``power_w``: what
        made the guard act, the mean over the window or, before a step down, the mean that was to come."""
        with self._lock:
            return [dict(event) for event in self._events.all]

    @property
    def events_left_out(self) -> int:
        """Number of actions that are not in ``events`` any more."""
        return self._events.left_out

    def take_events(self) -> List[Dict[str, Any]]:
        """Take the events since the last call out of ``events``, for a guard that runs for days."""
        with self._lock:
            events = self._events.all
            self._events.clear()
            return events

    @property
    def is_lowest(self) -> bool:
        """True if no lower setting can be held."""
        return self.value is None or (self.is_held and self.level.setting == 0)

    @property
    def is_above(self) -> bool:
        """True if the mean over the window is above the cap."""
        return is_above(self.level.mean_w, self.cap_w)

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

        ``is_old``: the reading still includes power from before this guard began. Above the cap it changes nothing, but
        the patience at the lowest setting counts it.
        """
        with self._lock:
            elapsed_s = self._elapsed_s(time_s)
            if self.cap_w is None and self.max_temp_c is None:
                return
            if is_old:
                if self.is_lowest:
                    self._patience.lose(elapsed_s)
                return
            is_lowest, before = self.is_lowest, self.level.setting
            too_hot = is_too_hot(temperature_c, self.max_temp_c)
            self._limit_heat(time_s, temperature_c, too_hot)
            self.level.tries = self.is_held
            wanted = self.level.step(time_s, power_w)
            too_much = self.is_above
            event = {"time_s": time_s, "power_w": self.level.mean_w}
            if self.max_temp_c is not None and temperature_c is not None:
                event["temperature_c"] = temperature_c
            if is_lowest and (too_much or too_hot):
                self._stay_lowest(event, elapsed_s if too_much else elapsed_s * PATIENCE_S / HEAT_PATIENCE_S)
            elif not (too_much or too_hot):
                self._patience.regain(elapsed_s)
            if self.level.slices and self.is_held and not too_hot:
                self._slice(wanted, event, was=before)
                return
            is_free_above = not self.is_held and (self.level.is_paying_back or self.level.is_above or too_hot)
            if self._ladder and (wanted < before or is_free_above or (self.is_held and wanted > before)):
                if wanted <= before and not too_hot:
                    event["power_w"] = max(self.level.mean_w, self.level.foreseen_w)
                self._change(wanted, event, was=before)
            elif not self.is_held:
                self.level.setting = before

    def tick(self, time_s: float) -> None:
        """Begin or end a slice between two readings. Raises: any exception of ``change``."""
        with self._lock:
            if self.level.slices and self.is_held and self.has_read:
                before = self.level.setting
                wanted = self.level.step(time_s)
                self._slice(wanted, {"time_s": time_s, "power_w": self.level.mean_w}, was=before)

    def begin_at(self, setting: int) -> None:
        """Continue at a setting of the ladder that the board was brought to, and forget what was drawn."""
        with self._lock:
            self.level.start_at(setting)
            self.value = self._ladder[setting]

    def watch(self, time_s: float, power_w: float) -> None:
        """Note a reading, and leave the board where it is."""
        with self._lock:
            self._patience.regain(self._elapsed_s(time_s))
            before, self.level.tries = self.level.setting, False
            self.level.step(time_s, power_w)
            self.level.setting = before

    def drop(self, time_s: float, power_w: float) -> None:
        """React to a reading by the lowest setting at once, and stay there. Raises: any exception of ``change``."""
        with self._lock:
            elapsed_s, event = self._elapsed_s(time_s), {"time_s": time_s, "power_w": power_w}
            before, self.level.most = self.level.setting, 0
            if self.is_lowest:
                self._stay_lowest(event, elapsed_s)
            else:
                self._change(0, event, was=before)

    def follow(self, value: Any) -> None:
        """Continue from ``value``, one of the settings: the board, which is not held, chose a clock near it."""
        with self._lock:
            if value != self.value:
                self.level.follow(self._ladder.index(value))
                self.value, self._told_lowest = value, False

    def move_cap(self, cap_w: Optional[float]) -> None:
        """React to readings above another cap from now on."""
        with self._lock:
            if cap_w != self.cap_w:
                self.level.move_cap(cap_w)
                self._told_lowest = False

    def _elapsed_s(self, time_s: float) -> float:
        return self._patience.elapsed_s(time_s, max(GAP_S, self.level.settle_s))

    def _limit_heat(self, time_s: float, temperature_c: Optional[float], too_hot: bool) -> None:
        """Lower the highest setting that may be used while it is too hot, and raise it again while it is cool."""
        level, top = self.level, max(0, len(self._ladder) - 1)
        now_c = math.inf if temperature_c is None else temperature_c
        if too_hot:
            self._cool_s = None
            if self._heat_s is None or time_s - self._heat_s >= HEAT_WAIT_S:
                level.most, self._heat_s = max(0, level.setting - 1), time_s
        elif level.most < top and self.max_temp_c is not None and now_c < self.max_temp_c - COOL_BY_C:
            self._cool_s = time_s if self._cool_s is None else self._cool_s
            if time_s - self._cool_s >= HEAT_WAIT_S:
                level.most, self._cool_s = level.most + 1, time_s
        else:
            self._cool_s = None

    def _stay_lowest(self, event: Dict[str, Any], over_s: float) -> None:
        if not self._told_lowest:
            self._told_lowest = True
            self._events.append(dict(event, action="at lowest", setting=self.value))
        self._patience.lose(over_s)

    def _change(self, setting: int, event: Dict[str, Any], *, was: int) -> None:
        value, down = self._ladder[setting], setting < was or not self.is_held
        try:
            self._set(value)
        except Exception:
            self.level.follow(was)
            raise
        self.level.setting = self._told = setting
        self.pushed += down and self.value == self._ladder[-1]
        self.value, self.is_held, self._told_lowest = value, True, False
        self._events.append(dict(event, action="down" if down else "up", setting=value))

    def _slice(self, setting: int, event: Dict[str, Any], *, was: int) -> None:
        """Switch to a setting, and tell of it only if the level has left the one that was told, not of its slices."""
        if setting != was:
            assert self._switch is not None
            try:
                self._switch(self._ladder[setting])
            except Exception as error:  # noqa: BLE001 - whatever it is, the full change of the clock is tried instead
                self.slices_failed, self.level.slices, self.level.is_sliced = error, False, False
                self.level.setting = was
                self._change(min(setting, was), event, was=max(setting, was))
                return
            self.value, self._told_lowest = self._ladder[setting], False
        whole = setting - self.level.is_sliced
        if whole == self._told:
            self._left_s = None
            return
        self._left_s = event["time_s"] if self._left_s is None else self._left_s
        if abs(whole - self._told) > 1 or event["time_s"] - self._left_s >= PEAK_S:
            action = "down" if whole < self._told else "up"
            self._told, self._left_s = whole, None
            self._events.append(dict(event, action=action, setting=self._ladder[whole]))

    def state_dict(self) -> Dict[str, Any]:
        """The state from which a later guard continues, as JSON values."""
        with self._lock:
            return {
                "setting": self.value,
                "events": [dict(event) for event in self._events.all],
                "events_left_out": self._events.left_out,
                "stopped": self._patience.stopped,
                "last_s": self._patience.last_s,
                "over_s": self._patience.over_s,
                "told_lowest": self._told_lowest,
                "heat_s": self._heat_s,
                "cool_s": self._cool_s,
                "level": self.level.state_dict(),
            }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Continue from ``state_dict``, after applying its setting to the board. Raises: as ``change`` does."""
        with self._lock:
            if state["setting"] is not None and state["setting"] != self.value:
                self._set(state["setting"])
                self.value = state["setting"]
                self.level.start_at(self._ladder.index(self.value))
            if "level" in state:  # not in states of before 0.1.0
                self.level.load_state_dict(state["level"])
            self._heat_s, self._cool_s = state.get("heat_s"), state.get("cool_s")
            self._events.load([dict(event) for event in state["events"]], state.get("events_left_out", 0))
            self._patience.stopped = state["stopped"]
            self._patience.last_s = state["last_s"]
            self._patience.over_s = state["over_s"]
            self._told_lowest = state["told_lowest"]


def told(event: Dict[str, Any], unit: str = "MHz") -> str:
    """One of the guard's events in words."""
    text = "{:.2f} W".format(event["power_w"])
    if "temperature_c" in event:
        text += ", {:.1f} C".format(event["temperature_c"])
    if event["action"] == "at lowest":
        return text + " at the lowest clock"
    return "{}: {} to {:g} {}".format(text, event["action"], event["setting"], unit)
