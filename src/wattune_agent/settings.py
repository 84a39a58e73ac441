"""The board's listed clock that matches a given frequency."""

from typing import Optional, Sequence

__all__ = ["NEAR_MHZ", "at_most", "nearest"]

NEAR_MHZ = 1.0
"""A clock may be given rounded: 115 MHz for 114.75."""

SLACK_MHZ = 0.5
"""A clock that is read back may be rounded as well."""


def at_most(settings: Sequence[float], now_mhz: Optional[float]) -> float:
    """The setting for a board that runs at ``now_mhz`` unpinned: the highest that is not above it, otherwise the
    lowest; the highest of all if the board does not report its clock. ``settings`` ascend and are not empty."""
    below = [mhz for mhz in settings if now_mhz is None or mhz <= now_mhz + SLACK_MHZ]
    return below[-1] if below else settings[0]


def nearest(settings: Sequence[float], wanted_mhz: float) -> float:
    """The setting that a rounded number refers to; the number itself if no setting is within ``NEAR_MHZ`` of it."""
    found = min(settings, key=lambda mhz: abs(mhz - wanted_mhz), default=wanted_mhz)
    return found if abs(found - wanted_mhz) < NEAR_MHZ else wanted_mhz
