"""Energy summed from readings of a power sensor; a sensor that is stuck at one value, and a program that stalls."""

import math
from collections import deque
from statistics import median
from typing import Deque, Dict, Optional, Tuple

from wattune_agent.cap_level import SLACK
from wattune_agent.power_log import PowerLog, PowerTable

FIRST_S = 0.1
"""Time that the first reading stands for, the others for the time since the reading before."""

ONE = PowerTable([])
"""One setting, since a mean of readings asks for none."""


class Joules:
    """Energy, peak and time above a cap over a period that begins at 0.

    Above: if the mean of the readings over ``window_s`` is more than ``SLACK`` above the cap; without a window, if the
    latest reading is above it.

    A reading gives the power ``delay_s`` ago (the sensor's lag plus half of its window and of its period). So the
    first ``delay_s`` of readings belong to the time before and are left out, and the last reading covers ``delay_s``
    at the end.
    """

    def __init__(self, delay_s: float, cap_w: Optional[float] = None, window_s: Optional[float] = None) -> None:
        self.cap_w = cap_w
        """Another cap counts from the latest reading on."""
        self.readings = 0
        self.peak_w = 0.0
        self._window_s = window_s
        self._log = PowerLog(window_s or 0.0)
        self._delay_s = delay_s
        self._energy_j = 0.0
        self._above_s = 0.0
        self._last_s = 0.0
        self._last_w = 0.0

    def add(self, time_s: float, power_w: float) -> None:
        """Add a reading: the previous one applies until now, and the first one from the beginning."""
        time_s = max(time_s, self._last_s)  # no time counts twice if a pause set the clock back a little
        held_w = self._last_w if self.readings else power_w
        self._energy_j += held_w * self._counted_s(time_s)
        self._above_s += self._over_s(time_s) if self.readings else 0.0
        self._log.add(time_s, time_s - self._last_s if self.readings else FIRST_S, 0, power_w)
        self._last_s, self._last_w = time_s, power_w
        self.readings += 1
        self.peak_w = max(self.peak_w, power_w)

    def energy_j(self, end_s: float) -> float:
        """Joules from 0 to ``end_s``, which is not before the last reading."""
        return self._energy_j + self._last_w * (self._counted_s(end_s) + min(self._delay_s, end_s))

    def above_s(self, end_s: float) -> float:
        """Seconds up to ``end_s`` during which the power was above the cap."""
        return self._above_s + self._over_s(end_s)

    @property
    def is_above(self) -> bool:
        """True if the power is above the cap, as of the latest reading."""
        if self.cap_w is None or not self.readings:
            return False
        if self._window_s is None:
            return self._last_w > self.cap_w
        known_s, mean_w, _ = self._log.means(self._last_s - self._window_s, self._last_s, ONE)
        return (mean_w if known_s else self._last_w) > (1 + SLACK) * self.cap_w

    def _counted_s(self, time_s: float) -> float:
        return max(0.0, time_s - max(self._last_s, self._delay_s))

    def _over_s(self, time_s: float) -> float:
        return max(0.0, time_s - self._last_s) if self.is_above else 0.0


STUCK_READINGS = 20
"""The same reading this many times in a row ..."""

STUCK_S = 10.0
"""... over at least this time, and over several of the sensor's own periods ..."""

STUCK_PERIODS = 5.0
"""... while clock or load changed: then the sensor is stuck. A steady load alone may read the same for a long time,
since sensors round (a Jetson Nano's to 40 mW)."""


class Stuck:
    """A check of readings against changes of clock or load, which reports a contradiction once."""

    def __init__(self, period_s: float = 0.0) -> None:
        self._least_s = max(STUCK_S, STUCK_PERIODS * period_s)
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
            or self._readings < STUCK_READINGS
            or time_s - self._since_s < self._least_s
        ):
            return None
        self._is_reported = True
        return "reads {:.3f} W for {:.0f} s, although clock or load changed".format(power_w, time_s - self._since_s)


STALL_MEAN_S = 10.0
"""Time of one mean of a program's power, of which the last ``STALL_MEANS`` are its usual power."""

STALL_MEANS = 360

STALL_SHARE = 0.25
"""Share of the usual power above the power at rest below which a program does nothing."""

STALL_LEAST = 1.2
"""Usual power over the power at rest from which the two can be told apart."""


class Stall:
    """A program that stalls, by watts: its power stays near ``rest_w``, the power before it began, for ``stall_s``.

    A processor that waits for another one may look busy all the while. A lower clock draws less too, so the power at a
    setting is compared with the usual power at that setting and at lower ones.
    """

    def __init__(self, stall_s: float, rest_w: float) -> None:
        self._stall_s = stall_s
        self._rest_w = rest_w
        self._means: Deque[Tuple[float, float]] = deque(maxlen=STALL_MEANS)  # lowest setting, and watts
        self._begin_mean(0.0, math.inf)
        self._usual_w: Dict[float, float] = {}  # by setting, since the latest mean
        self._low_s: Optional[float] = None  # since when the power is low
        self._is_told = False

    def notice(self, time_s: float, power_w: float, setting: Optional[float], *, is_held: bool) -> Optional[str]:
        """Add a reading at a setting (None: the board chooses its clock); returns a description once for each stall.

        A program that is held does not stall.
        """
        setting = math.inf if setting is None else setting
        rest_w, usual_w = self._rest_w, self._usual_at(setting)
        is_low = usual_w > STALL_LEAST * rest_w and power_w < rest_w + STALL_SHARE * (usual_w - rest_w)
        if is_held or not is_low:
            self._low_s, self._is_told = None, False
            if not is_held:
                self._learn(time_s, power_w, setting)
            return None
        self._low_s = time_s if self._low_s is None else self._low_s
        if self._is_told or time_s - self._low_s < self._stall_s:
            return None
        self._is_told = True
        text = "{:.2f} W for {:.0f} s, near the {:.2f} W at rest; usual are {:.2f} W: the program may hang"
        return text.format(power_w, time_s - self._low_s, rest_w, usual_w)

    def _usual_at(self, setting: float) -> float:
        """Usual power at this setting and at lower ones; 0 if unknown."""
        if setting not in self._usual_w:
            self._usual_w[setting] = median([watts for lowest, watts in self._means if lowest <= setting] or [0.0])
        return self._usual_w[setting]

    def _learn(self, time_s: float, power_w: float, setting: float) -> None:
        """Add a reading of a program that works to its usual power."""
        if setting < self._lowest:  # what a higher setting drew is not part of its mean
            self._begin_mean(time_s, setting)
        self._sum_w += power_w
        self._readings += 1
        if time_s - self._mean_s >= STALL_MEAN_S:
            self._means.append((self._lowest, self._sum_w / self._readings))
            self._usual_w.clear()
            self._begin_mean(time_s, setting)

    def _begin_mean(self, time_s: float, setting: float) -> None:
        self._sum_w, self._readings, self._mean_s, self._lowest = 0.0, 0, time_s, setting
