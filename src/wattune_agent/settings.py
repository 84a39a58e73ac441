"""The board's listed clock that matches a given frequency, or the clock at which the board has been lately."""

from collections import deque
from typing import Deque, List, Optional, Sequence, Tuple

NEAR_MHZ = 1.0
"""A clock may be given rounded: 115 MHz for 114.75."""

RECENT_S = 5.0
"""Time for which a clock counts as recent: a sensor may show the power of a second ago, and work comes in bursts."""

MOST_SETTINGS = 16
"""Most settings that are offered: a Thor lists 170 clocks and a card 110, which nobody could measure one by one."""

SLACK_MHZ = 0.5
"""A clock that is read back may be rounded as well."""


def at_most(settings: Sequence[float], now_mhz: Optional[float]) -> float:
    """The setting for a board that runs at ``now_mhz`` unpinned: the highest that is not above it, otherwise the
    lowest; the highest of all if the board does not report its clock. ``settings`` ascend and are not empty."""
    below = [mhz for mhz in settings if now_mhz is None or mhz <= now_mhz + SLACK_MHZ]
    return below[-1] if below else settings[0]


def exceeds(mhz: float, limit_mhz: float) -> bool:
    """True if a setting is above a limit that was read."""
    return mhz > limit_mhz + SLACK_MHZ


def nearest(settings: Sequence[float], wanted_mhz: float) -> float:
    """The setting that a rounded number refers to; the number itself if no setting is within ``NEAR_MHZ`` of it."""
    setting_mhz = min(settings, key=lambda mhz: abs(mhz - wanted_mhz), default=wanted_mhz)
    return setting_mhz if abs(setting_mhz - wanted_mhz) < NEAR_MHZ else wanted_mhz


def thinned(listed: Sequence[int], limit: Optional[int] = None, most: int = MOST_SETTINGS) -> List[int]:
    """At most ``most`` of the values, ascending and evenly spread, and the limit of the power mode if it is one of
    them."""
    if len(listed) <= most:
        return list(listed)
    steps = most - 1
    offered = {listed[round(step * (len(listed) - 1) / steps)] for step in range(steps + 1)}
    return sorted(offered | {value for value in listed if value == limit})


def grid(highest: int) -> List[int]:
    """Settings for a card that lists none: evenly spaced from a quarter of the highest, since its lowest is unknown."""
    steps = MOST_SETTINGS - 1
    return [round(highest * (0.25 + 0.75 * step / steps)) for step in range(steps + 1)]


class RecentClock:
    """The highest clock of the last ``RECENT_S`` seconds of a board that is not pinned.

    A GPU idles between two bursts of work, at its lowest clock or without any. A reading above the cap that arrives
    then belongs to the higher clock of the burst.
    """

    def __init__(self, settings: Sequence[float]) -> None:
        self._settings = settings
        self._recent: Deque[Tuple[float, float]] = deque()  # times ascend and clocks descend

    def add(self, time_s: float, now_mhz: Optional[float]) -> None:
        """Add a reading of the clock; None if the board does not report it."""
        setting = at_most(self._settings, now_mhz)
        while self._recent and self._recent[-1][1] <= setting:
            self._recent.pop()
        self._recent.append((time_s, setting))
        while time_s - self._recent[0][0] > RECENT_S:
            self._recent.popleft()

    @property
    def highest(self) -> float:
        """The setting of the highest one. Call it after ``add``."""
        return self._recent[0][1]
