"""Readings of a power sensor, added up to an energy."""

from typing import Optional

__all__ = ["Joules"]


class Joules:
    """Energy, peak and time above a cap of a stretch of time that begins at 0.

    A reading says what the power was ``delay_s`` ago (the sensor's lag, and half of its window and of its period). So
    the readings of that much time at the beginning belong to what was before and are left out, and the last one stands
    for that much time at the end.
    """

    def __init__(self, cap_w: Optional[float], delay_s: float) -> None:
        self.readings = 0
        self.peak_w = 0.0
        self._cap_w = cap_w
        self._delay_s = delay_s
        self._energy_j = 0.0
        self._above_s = 0.0
        self._last_s = 0.0
        self._last_w = 0.0

    def add(self, time_s: float, power_w: float) -> None:
        """Take in one reading: the one before it held until now, and the first one since the beginning."""
        time_s = max(time_s, self._last_s)  # no stretch counts twice where the clock was set back a little by a pause
        held_w = self._last_w if self.readings else power_w
        self._energy_j += held_w * self._counted_s(time_s)
        self._above_s += self._over_s(time_s) if self.readings else 0.0
        self._last_s, self._last_w = time_s, power_w
        self.readings += 1
        self.peak_w = max(self.peak_w, power_w)

    def energy_j(self, end_s: float) -> float:
        """Joules from 0 to ``end_s``, which is not before the last reading."""
        return self._energy_j + self._last_w * (self._counted_s(end_s) + min(self._delay_s, end_s))

    def above_s(self, end_s: float) -> float:
        """Seconds of it during which the latest reading was above the cap."""
        return self._above_s + self._over_s(end_s)

    @property
    def is_above(self) -> bool:
        """Whether the latest reading is above the cap."""
        return self._cap_w is not None and self._last_w > self._cap_w

    def _counted_s(self, time_s: float) -> float:
        return max(0.0, time_s - max(self._last_s, self._delay_s))

    def _over_s(self, time_s: float) -> float:
        return max(0.0, time_s - self._last_s) if self.is_above else 0.0
