"""Notices a power sensor that shows one value for ever."""

from __future__ import annotations

READINGS = 20
"""The same reading so many times in a row ..."""

SECONDS = 10.0
"""... over at least so long, and over several of the sensor's own periods ..."""

PERIODS = 5.0
"""... while clock or load changed: then the sensor is stuck. A steady load alone may well read the same for long, since
sensors round (a Jetson Nano's to 40 mW)."""


class Stuck:
    """Fed with readings and with changes of clock or load; says once when they do not fit together."""

    def __init__(self, period_s: float = 0.0):
        self._least_s = max(SECONDS, PERIODS * period_s)
        self._power_w: float | None = None
        self._since_s = 0.0
        self._readings = 0
        self._changed = False
        self._told = False

    def change(self) -> None:
        """Clock or load changed."""
        self._changed = True

    def notice(self, time_s: float, power_w: float) -> bool:
        """Take in a reading; True at the first one that shows the sensor to be stuck."""
        if power_w != self._power_w:
            self._power_w, self._since_s, self._readings = power_w, time_s, 1
            self._changed = self._told = False
            return False
        self._readings += 1
        if self._told or not self._changed or self._readings < READINGS or time_s - self._since_s < self._least_s:
            return False
        self._told = True
        return True

    @property
    def same_s(self) -> float:
        """Since when the reading is the same, in the time of the readings."""
        return self._since_s
