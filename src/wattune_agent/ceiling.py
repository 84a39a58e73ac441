"""The agent's own guard: a ceiling on the clock that a client holds, for when the client does not react."""

from typing import Any, Dict, List, Optional, Sequence

from wattune_agent.cap_guard import HEAT_WAIT_S, CapGuard, is_too_hot
from wattune_agent.cap_level import CapLevel, Sensing
from wattune_agent.power_log import PowerTable
from wattune_agent.settings import at_most

__all__ = ["GRACE_S", "Ceiling"]

GRACE_S = 2.0
"""Time above the cap, without the client lowering the clock, after which the agent lowers it itself."""


class Ceiling:
    """A guard that lets the client react first.

    If the mean exceeds the cap for ``GRACE_S`` and the client does not lower its clock, the ceiling drops below the
    current clock. From then on it follows the rule of CapGuard, reading by reading, until it rises to the clock that
    the client wants, or to the highest if the client pins none.
    """

    def __init__(
        self, settings: Sequence[float], cap_w: Optional[float], max_temp_c: Optional[float], sensing: Sensing
    ) -> None:
        self.sensing = sensing
        self.max_temp_c = max_temp_c
        self.value: Optional[float] = None
        """The highest clock that may be held now; None means any."""
        self._settings = tuple(settings)
        self._guard = CapGuard(settings, _leave, CapLevel(PowerTable.guess(settings), cap_w, sensing), max_temp_c)
        # A reaction to heat takes as long as the rule itself waits between two steps.
        self._grace_s = {"power": max(GRACE_S, sensing.settle_s + 1.0), "heat": HEAT_WAIT_S + GRACE_S}
        self._since_s: Dict[str, float] = {}  # since when which of the limits is exceeded

    @property
    def cap_w(self) -> Optional[float]:
        """The cap; None if the temperature alone is limited."""
        return self._guard.cap_w

    def move_cap(self, cap_w: Optional[float]) -> None:
        """Hold another cap."""
        self._guard.move_cap(cap_w)

    def lowered(self) -> None:
        """Note that the client lowered its clock, and wait for the effect."""
        self._since_s = {}

    def follows(self, cap_w: Optional[float], sensing: Sensing, max_temp_c: Optional[float]) -> bool:
        """Continue under a cap that is not higher, if nothing else is asked for; returns true if it does.

        A new guard would begin at the clock that the client wants, and raise one that had to be lowered.
        """
        before_w = self.cap_w
        if (self.sensing, self.max_temp_c) != (sensing, max_temp_c) or (before_w is None) != (cap_w is None):
            return False
        if cap_w is not None and before_w is not None and cap_w > before_w:
            return False
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
        # The board's limit, and with it the settings that it offers, may have changed since.
        if self.value is None or at < self.value:
            self._guard.follow(at_most(self._settings, at), is_held=is_held)
        if self.value is None and not self._is_unanswered(time_s, temperature_c):
            self._guard.watch(time_s, power_w)
            return []
        self._guard(time_s, power_w, temperature_c)
        events = self._guard.take_events()
        self.value = self._guard.value
        if pin_mhz is not None:
            is_over = self.value >= pin_mhz
        else:
            is_over = self.value == self._settings[-1] and any(event["action"] == "up" for event in events)
        if is_over:
            self.value = None
        return events

    def _is_unanswered(self, time_s: float, temperature_c: Optional[float]) -> bool:
        exceeded = {"power": self._guard.level.is_above, "heat": is_too_hot(temperature_c, self.max_temp_c)}
        self._since_s = {limit: self._since_s.get(limit, time_s) for limit in exceeded if exceeded[limit]}
        return any(time_s - since_s >= self._grace_s[limit] for limit, since_s in self._since_s.items())


def _leave(value: float) -> None:
    """Change nothing: the agent's BoardLease applies the ceiling, since the clock that the client wants also counts."""
