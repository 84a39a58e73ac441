"""The agent's own guard: a ceiling on the clock that a client holds, for when the client does not react."""

from typing import Any, Dict, List, Optional, Sequence

from wattune_agent.cap_guard import HEAT_WAIT_S, CapGuard, is_too_hot
from wattune_agent.cap_window import CapWindow
from wattune_agent.settings import at_most

__all__ = ["GRACE_S", "Ceiling"]

GRACE_S = 2.0
"""Time above the cap, without the client lowering the clock, after which the agent lowers it itself."""


class Ceiling:
    """A guard that lets the client react first.

    If readings exceed the cap for ``GRACE_S`` and the client does not lower its clock, the ceiling drops below the
    current clock. From then on it follows the rule of CapGuard, reading by reading, until it rises to the clock that
    the client wants, or to the highest if the client pins none. Its history remains: a clock that exceeded the cap is
    tried again after a longer wait each time.
    """

    def __init__(
        self, settings: Sequence[float], window: CapWindow, max_temp_c: Optional[float], settle_s: float
    ) -> None:
        self.window = window
        self.max_temp_c = max_temp_c
        self.value: Optional[float] = None
        """The highest clock that may be held now; None means any."""
        self._settings = tuple(settings)
        self._guard = CapGuard(settings, _leave, window.cap_w, settle_s, max_temp_c, window=window)
        self._grace_s = max(GRACE_S, settle_s + 1.0)
        self._above_since_s: Optional[float] = None
        self._hot_since_s: Optional[float] = None
        self._reported_events = 0

    def lowered(self) -> None:
        """Note that the client lowered its clock, and wait for the effect."""
        self._above_since_s = self._hot_since_s = None
        self.window.restart(0.0)

    def follows(self, cap_w: Optional[float], window_s: Optional[float], max_temp_c: Optional[float]) -> bool:
        """Continue under a cap that is not higher, if nothing else is asked for; returns true if it does.

        A new guard would begin at the clock that the client wants, and raise one that had to be lowered.
        """
        before_w = self.window.cap_w
        if (self.window.window_s, self.max_temp_c) != (window_s, max_temp_c) or before_w is None or cap_w is None:
            return (before_w, self.window.window_s, self.max_temp_c) == (cap_w, window_s, max_temp_c)
        if cap_w > before_w:
            return False
        if cap_w < before_w:
            self.window.move_cap(cap_w)
            self._guard.move_cap(cap_w)
        return True

    def __call__(
        self,
        time_s: float,
        power_w: float,
        temperature_c: Optional[float],
        at: float,
        pin_mhz: Optional[float],
        *,
        is_held: bool,
    ) -> List[Dict[str, Any]]:
        """Judge one reading, taken with the clock ``at`` a setting, pinned there or not, while the client pins
        ``pin_mhz`` (None: no clock).

        Returns the new events of the guard and updates ``value``.
        """
        self.window.add(time_s, power_w)
        if not self._is_unanswered(time_s, temperature_c):
            if self.value is None:
                return []
        elif self.value is None or at < self.value:
            # The board's limit, and with it the settings that it offers, may have changed since.
            self._guard.follow(at_most(self._settings, at), is_held=is_held)
        self._guard(time_s, power_w, temperature_c)
        events = self._guard.events[self._reported_events :]
        self._reported_events += len(events)
        self.value = self._guard.value
        if pin_mhz is not None:
            is_over = self.value >= pin_mhz
        else:
            is_over = self.value == self._settings[-1] and any(event["action"] == "up" for event in events)
        if is_over:
            self.value = None
        return events

    def _is_unanswered(self, time_s: float, temperature_c: Optional[float]) -> bool:
        if not self.window.is_above:
            self._above_since_s = None
        elif self._above_since_s is None:
            self._above_since_s = time_s
        if not is_too_hot(temperature_c, self.max_temp_c):
            self._hot_since_s = None
        elif self._hot_since_s is None:
            self._hot_since_s = time_s
        if self.value is not None:
            return self._above_since_s is not None or self._hot_since_s is not None
        # A reaction to heat takes as long as the rule itself waits between two steps.
        above = self._above_since_s is not None and time_s - self._above_since_s >= self._grace_s
        hot = self._hot_since_s is not None and time_s - self._hot_since_s >= HEAT_WAIT_S + GRACE_S
        return above or hot


def _leave(value: float) -> None:
    """Change nothing: the agent's BoardLease applies the ceiling, since the clock that the client wants also counts."""
