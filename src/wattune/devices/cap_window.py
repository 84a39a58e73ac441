"""The mean power over a window of time, judged against a cap by readings of a sensor that is noisy and averages itself.

A cap on the highest reading is broken by noise alone: of ten readings at the cap, five are above it. What a supply, a
battery or a fuse cares about is the mean over some time. ``CapWindow`` tells whether that mean is surely above the cap,
surely below it, or not known yet, and takes in one more reading until it is known.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

ABOVE_Z = 2.6
"""Standard errors above the cap from which a mean is surely above it: wrong once in two hundred times."""

NOISE_SHARE = 0.03
"""Noise of a sensor that nothing is known about, relative to the reading; more than this is not the sensor's, but real
changes of power, and those count in full."""

NOISE_KNOWN_FROM = 3
"""Pairs of readings from which their own scatter says more about the noise."""

LONG_AGO_S = -1e18
"""In place of the time of what has not happened: JSON has no infinity."""

_STATE = ("is_full", "_sum_w", "_begun_s", "_fresh_from_s", "_last_s", "_settling_s", "_paired", "_squares", "_pairs")


class CapWindow:
    """The mean power over the last ``window_s`` seconds against ``cap_w`` watts; both may be None.

    Without a window (None) the rule is that of the highest reading: above as soon as one reading is above the cap.
    ``noise_w``: standard deviation of one reading of the sensor (0: estimated from the readings); ``averaging_s`` and
    ``period_s``: time that a reading averages over, and time between two fresh readings. Readings are independent of
    each other only if they are further apart than both.

    Until a window has passed, the mean of its beginning counts: without any history, a burst is not allowed.
    """

    def __init__(
        self,
        cap_w: float | None,
        window_s: float | None,
        *,
        noise_w: float = 0.0,
        averaging_s: float = 0.0,
        period_s: float = 0.0,
    ) -> None:
        self.cap_w = cap_w
        """Another cap counts for what was drawn before as well."""
        self.window_s = window_s
        self.is_full = False
        """True once readings cover a whole window."""
        self._apart_s = max(averaging_s, period_s)
        self._noise_w = noise_w
        self._readings: deque[list[float]] = deque()  # times and watts
        self._sum_w, self._begun_s = 0.0, 0.0
        self._last_s = self._fresh_from_s = LONG_AGO_S
        self._settling_s = 0.0
        self._paired: list[float] | None = None
        self._squares, self._pairs = 0.0, 0

    def add(self, time_s: float, power_w: float) -> None:
        """Add a reading. One that is earlier than the last, on a clock that was set back, starts over."""
        if time_s < self._last_s:
            self.restart(0.0)
        if self._settling_s:
            self._fresh_from_s, self._settling_s = time_s + self._settling_s, 0.0
        if self._last_s < self._fresh_from_s:  # the first fresh reading does not count with the last old one, either
            self._clear()
        if self._paired is None or time_s - self._paired[0] >= self._apart_s - 1e-9:
            if self._paired is not None:
                self._squares += (power_w - self._paired[1]) ** 2 / 2
                self._pairs += 1
            self._paired = [time_s, power_w]
        readings, window_s = self._readings, self.window_s or 0.0
        if readings:  # a reading stands for the time since the one before it
            self.is_full = 2 * time_s - self._begun_s - self._last_s >= window_s - 1e-9
        else:
            self._begun_s, self.is_full = time_s, not window_s
        self._last_s = time_s
        readings.append([time_s, power_w])
        self._sum_w += power_w
        while len(readings) > 1 and readings[0][0] <= time_s - window_s + 1e-9:
            self._sum_w -= readings.popleft()[1]
        if len(readings) == 1:
            self._sum_w = power_w  # what rounding left of others goes

    def restart(self, settle_s: float) -> None:
        """Forget the readings after a change of the setting. For ``settle_s`` more, readings may show the power of
        before in part: each then counts on its own."""
        # Before the first reading nobody knows what time it is: that reading tells.
        self._settling_s = settle_s if self._last_s == LONG_AGO_S else 0.0
        self._fresh_from_s = self._last_s + settle_s if settle_s else LONG_AGO_S
        self._clear()

    def state_dict(self) -> dict[str, Any]:
        """State from which a later window continues, as JSON values."""
        return {"readings": list(self._readings), **{name: getattr(self, name) for name in _STATE}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``."""
        if "readings" not in state:  # of before 0.1.0: the window starts over
            return
        self._readings = deque(state["readings"])
        for name in _STATE:
            setattr(self, name, state[name])

    @property
    def mean_w(self) -> float:
        """The mean over the window, as far as it was observed; 0 without a reading."""
        return self._sum_w / len(self._readings) if self._readings else 0.0

    @property
    def is_above(self) -> bool:
        """True if the mean is surely above the cap."""
        return self.cap_w is not None and self.mean_w - ABOVE_Z * self.error_w > self.cap_w

    @property
    def error_w(self) -> float:
        """Standard error of ``mean_w``."""
        readings = self._readings
        if self.window_s is None or not readings:
            return 0.0
        noise_w = self._noise_w
        if not noise_w:
            most_w = NOISE_SHARE * abs(self.mean_w)
            noise_w = most_w
            if self._pairs >= NOISE_KNOWN_FROM:
                noise_w = min(most_w, math.sqrt(self._squares / self._pairs) * (1 + 1 / self._pairs))
        independent = float(len(readings))
        if self._apart_s:
            independent = min(independent, 1 + (readings[-1][0] - readings[0][0]) / self._apart_s)
        return noise_w / math.sqrt(independent)

    def _clear(self) -> None:
        self._paired = None
        self._readings.clear()
        self._sum_w, self.is_full = 0.0, False


def highest_mean(powers_w: Sequence[float], count: int) -> float:
    """The highest mean of ``count`` readings in a row; of all readings, if they are fewer. At least one is needed."""
    sum_w = sum(powers_w[:count])
    highest_w = sum_w
    for old_w, new_w in zip(powers_w, powers_w[count:], strict=False):
        sum_w += new_w - old_w
        highest_w = max(highest_w, sum_w)
    return highest_w / min(count, len(powers_w))
