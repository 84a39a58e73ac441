"""A limit that changes while a program runs: which one its guard holds, and what it has seen of the clocks."""

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

__all__ = ["CapNow", "CapRecord", "MovingLimit"]


class CapNow(NamedTuple):
    """A cap as it was asked for, in watts (None: none), and the limit at the board's sensor that it means (None: none).

    ``may_run``: false if the cap leaves nothing to run with, as 0 W does.
    """

    asked_w: Optional[float]
    limit_w: Optional[float]
    may_run: bool

    @property
    def most_w(self) -> float:
        """The most power that it allows, infinite without a limit."""
        if not self.may_run:
            return 0.0
        return math.inf if self.limit_w is None else self.limit_w


class MovingLimit:
    """The limits of a program over its time, in seconds since it began.

    ``caps`` has ``at(time_s)``, a CapNow; ``next_change_s(time_s)``, the next change that is known beforehand, or None;
    ``is_announced``, true if all changes are; and ``events(now_s)``, which gets that time as a call: pairs of kind and
    text of what happened to it.

    A lower limit that is announced is held ``lead_s`` before its time, so that neither its window nor the sensor
    contains power from before.
    """

    def __init__(self, caps: Any, lead_s: float) -> None:
        self.now: CapNow = caps.at(0.0)
        """The present cap."""
        self.held: CapNow = self.now
        """The lowest one of now and of the next ``lead_s`` seconds, which the guard holds."""
        self._caps = caps
        self._lead_s = lead_s

    def look(self, time_s: float, now_s: Callable[[], float]) -> List[Tuple[str, str]]:
        """Look at the caps, at ``time_s`` or a moment later; returns what happened to them."""
        events: List[Tuple[str, str]] = self._caps.events(now_s)
        now = self._caps.at(time_s)
        least, change_s = now, self._caps.next_change_s(time_s)
        while change_s is not None and change_s <= time_s + self._lead_s:
            following = self._caps.at(change_s)
            if following.most_w < least.most_w:
                least = following
            change_s = self._caps.next_change_s(change_s)
        self.now, self.held = now, least
        return events

    def is_last(self, time_s: float) -> bool:
        """True if the present cap holds for good."""
        return bool(self._caps.is_announced) and self._caps.next_change_s(time_s) is None


class CapRecord:
    """The intervals of a run under caps that change, as a report has them.

    ``above_s`` and ``energy_j`` give the seconds above the caps and the joules until a time.
    """

    def __init__(self, above_s: Callable[[float], float], energy_j: Callable[[float], float]) -> None:
        self._above_s, self._energy_j = above_s, energy_j
        self._intervals: List[Dict[str, Any]] = []
        self._counted = 0.0, 0.0

    def note(self, time_s: float, now: CapNow, setting: Optional[float], pause: Optional[str]) -> None:
        """Note the present cap, clock and pause; call it before another limit is counted with."""
        entry = {"asked_w": now.asked_w, "cap_w": now.limit_w, "setting": setting, "pause": pause}
        last = self._intervals[-1] if self._intervals else {}
        if all(last.get(name, entry) == value for name, value in entry.items()):
            return
        self._close(time_s)
        self._intervals.append(dict(entry, time_s=time_s, above_cap_s=0.0, energy_j=0.0))

    def end(self, time_s: float) -> Tuple[List[Dict[str, Any]], float]:
        """The intervals until the end of the run, and the seconds of its pauses."""
        self._close(time_s)
        ends_s = [one["time_s"] for one in self._intervals[1:]] + [time_s]
        pairs = zip(self._intervals, ends_s)
        paused_s = sum(max(0.0, end_s - one["time_s"]) for one, end_s in pairs if one["pause"] is not None)
        return [dict(one) for one in self._intervals], paused_s

    def _close(self, time_s: float) -> None:
        now = self._above_s(time_s), self._energy_j(time_s)
        for name, value, before in zip(("above_cap_s", "energy_j"), now, self._counted):
            if self._intervals:
                self._intervals[-1][name] += max(0.0, value - before)
        self._counted = now
