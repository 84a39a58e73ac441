"""The agent's own guard: a ceiling over the clock that a client holds, for when the client does not answer."""

from typing import Any, Dict, List, Optional, Sequence

from wattune_agent.cap_guard import HEAT_WAIT_S, CapGuard

__all__ = ["GRACE_S", "Ceiling"]

GRACE_S = 2.0
"""Time above the cap, without the client lowering the clock, after which the agent lowers it itself."""


class Ceiling:
    """A guard that leaves the first answer to the client.

    Readings above the cap for ``GRACE_S``, in which the client did not lower its clock, make it come down below the
    clock of then. From there on it follows the rule of CapGuard, reading by reading, until it is lifted above the clock
    that the client wants. What it learnt stays: a clock that failed is tried again later each time.
    """

    def __init__(
        self, settings: Sequence[float], cap_w: Optional[float], max_temp_c: Optional[float], settle_s: float
    ) -> None:
        self.cap_w = cap_w
        self.max_temp_c = max_temp_c
        self.value: Optional[float] = None
        """The highest clock that may be held now; None: any."""
        self._guard = CapGuard(settings, settings[-1] if settings else None, _leave, cap_w, settle_s, max_temp_c)
        self._grace_s = max(GRACE_S, settle_s + 1.0)
        self._above_since_s: Optional[float] = None
        self._hot_since_s: Optional[float] = None
        self._told = 0

    def lowered(self) -> None:
        """The client lowered its clock: that is an answer, and its effect is to be waited for."""
        self._above_since_s = self._hot_since_s = None

    def __call__(
        self, time_s: float, power_w: float, temperature_c: Optional[float], at: Optional[float], top: Optional[float]
    ) -> List[Dict[str, Any]]:
        """Judge one reading, taken with the clock ``at`` a setting while the client wanted ``top``.

        Returns the new events of the guard; ``value`` is what they lead to.
        """
        if not self._is_unanswered(time_s, power_w, temperature_c):
            if self.value is None:
                return []
        elif at is not None and (self.value is None or at < self.value):
            self._guard.follow(at)
        self._guard(time_s, power_w, temperature_c)
        self.value = self._guard.value
        if self.value is not None and top is not None and self.value >= top:
            self.value = None
        events = self._guard.events[self._told :]
        self._told += len(events)
        return events

    def _is_unanswered(self, time_s: float, power_w: float, temperature_c: Optional[float]) -> bool:
        if self.cap_w is None or power_w <= self.cap_w:
            self._above_since_s = None
        elif self._above_since_s is None:
            self._above_since_s = time_s
        if self.max_temp_c is None or temperature_c is None or temperature_c <= self.max_temp_c:
            self._hot_since_s = None
        elif self._hot_since_s is None:
            self._hot_since_s = time_s
        if self.value is not None:
            return self._above_since_s is not None or self._hot_since_s is not None
        # An answer to heat takes as long as the rule itself waits between two of them.
        above = self._above_since_s is not None and time_s - self._above_since_s >= self._grace_s
        hot = self._hot_since_s is not None and time_s - self._hot_since_s >= HEAT_WAIT_S + GRACE_S
        return above or hot


def _leave(value: float) -> None:
    """The agent's keeper brings the board to the ceiling itself: what the client wants counts as well."""
