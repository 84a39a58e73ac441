"""Which of a board's listed clocks is meant by another frequency."""

from typing import Optional, Sequence

__all__ = ["NEAR_MHZ", "at_most", "nearest"]

NEAR_MHZ = 1.0
"""A clock may be given rounded: 115 MHz for 114.75."""

SLACK_MHZ = 0.5
"""A clock that is read back may be rounded as well."""


def at_most(settings: Sequence[float], now_mhz: Optional[float]) -> float:
    """The setting of a board that runs at ``now_mhz`` by itself: the highest that is not above it, else the lowest;
    the highest of all where the board does not tell. ``settings`` ascend, and there is one at least."""
    below = [mhz for mhz in settings if now_mhz is None or mhz <= now_mhz + SLACK_MHZ]
    return below[-1] if below else settings[0]


def nearest(settings: Sequence[float], wanted_mhz: float) -> float:
    """The setting that is meant by a rounded number; the number itself where none is within ``NEAR_MHZ`` of it."""
    found = min(settings, key=lambda mhz: abs(mhz - wanted_mhz), default=wanted_mhz)
    return found if abs(found - wanted_mhz) < NEAR_MHZ else wanted_mhz
