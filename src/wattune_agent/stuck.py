"""Detection of a power sensor that is stuck at one value."""

from typing import Optional

__all__ = ["Stuck"]

READINGS = 20
"""The same reading this many times in a row ..."""

SECONDS = 10.0
"""... over at least this time, and over several of the sensor's own periods ..."""

PERIODS = 5.0
"""... while clock or load changed: then the sensor is stuck. A steady load alone may read the same for a long time,
since sensors round (a Jetson Nano's to 40 mW)."""


class Stuck:
    """A check of readings against changes of clock or load, which reports a contradiction once."""

    def __init__(self, period_s: float = 0.0) -> None:
        self._least_s = max(SECONDS, PERIODS * period_s)
        self._power_w: Optional[float] = None
        self._since_s = 0.0
        self._readings = 0
        self._has_changed = False
        self._is_reported = False

    def change(self) -> None:
        """Note that clock or load changed."""
        self._has_changed = True

    def notice(self, time_s: float, power_w: float) -> Optional[str]:
        """Add a reading; the first one that shows the sensor to be stuck returns a description."""
        if power_w != self._power_w:
            self._power_w, self._since_s, self._readings = power_w, time_s, 1
            self._has_changed = self._is_reported = False
            return None
        self._readings += 1
        if (
            self._is_reported
            or not self._has_changed
            or self._readings < READINGS
            or time_s - self._since_s < self._least_s
        ):
            return None
        self._is_reported = True
        return "reads {:.3f} W for {:.0f} s, although clock or load changed".format(power_w, time_s - self._since_s)
