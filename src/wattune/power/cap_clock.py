"""The caps of a run at each of its moments: by the clock on the wall, which may be set, or in the run's own time."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Final

from wattune.cap import SensorLimit, SupplyLosses
from wattune.cap_source import CapProblem, CapSource

APART_S: Final = 0.5
"""Time between two readings of clocks from which the two do not belong together: this thread had to wait."""

MOST_LIMITS: Final = 1000
"""Most caps whose limit at the sensor is remembered."""

Clock = Callable[[], datetime]


def wall_clock() -> datetime:
    """The present moment by the machine's clock, with its time zone."""
    return datetime.now(timezone.utc)


class CapInRun:
    """The caps of a source over the time of a run, in seconds since the run began, and their limits at the sensor.

    A cap at moments is bound to the clock on the wall: it is that of the present moment, also after NTP or a user has
    set the clock, or the machine slept. Before its first row, the first one holds. All other caps have the run's own
    time. ``is_virtual``: the run's time is a simulated one, which no clock on a wall knows. ``supply`` and
    ``averaging_s`` are those by which ``PowerCap.at_sensor`` computes limits.
    """

    def __init__(
        self,
        source: CapSource,
        *,
        is_virtual: bool,
        supply: SupplyLosses | None = None,
        averaging_s: float | None = None,
        clock: Clock = wall_clock,
    ):
        self.source = source
        self._supply, self._averaging_s = supply, averaging_s
        self._parts = [_Part(one, clock, is_virtual) for one in source.parts]
        self._limits: dict[float, SensorLimit | None] = {}  # watts of a cap -> its limit
        self._problem: CapProblem | None = None

    def begin(self, run_s: float) -> None:
        """Find the time of the caps, ``run_s`` seconds into the run. Raises: InputError before a trace's first row."""
        for part in self._parts:
            part.begin(run_s)

    def look(self, now_s: Callable[[], float]) -> CapProblem | None:
        """Follow the clock on the wall; ``now_s`` gives the time of the run.

        Returns: why the source cannot be read, once for each reason.
        """
        for part in self._parts:
            part.look(now_s)
        before, self._problem = self._problem, self.source.problem
        return None if self._problem == before else self._problem

    def watts(self, run_s: float) -> float:
        """The lowest cap ``run_s`` seconds into the run. Raises: InputError."""
        return min(part.source.watts(part.cap_s(run_s)) for part in self._parts)

    def next_change_s(self, run_s: float) -> float | None:
        """The run's time of the next announced change; None if there is none."""
        changes_s = [change_s for part in self._parts if (change_s := part.next_change_s(run_s)) is not None]
        return min(changes_s, default=None)

    def least_w(self, run_s: float, within_s: float) -> float:
        """The lowest of the caps that are announced for the next ``within_s`` seconds; infinite if none is."""
        least_w, change_s = math.inf, self.next_change_s(run_s)
        while change_s is not None and change_s <= run_s + within_s:
            least_w, change_s = min(least_w, self.watts(change_s)), self.next_change_s(change_s)
        return least_w

    def is_last(self, run_s: float) -> bool:
        """True if the present cap holds for good."""
        return self.source.is_announced and self.next_change_s(run_s) is None

    def limit(self, watts: float) -> SensorLimit | None:
        """The limit at the sensor under a cap, as ``CapSource.limit`` computes it."""
        if watts not in self._limits:
            if len(self._limits) >= MOST_LIMITS:  # a callable may never return the same watts twice
                self._limits.clear()
            self._limits[watts] = self.source.limit(watts, self._supply, self._averaging_s)
        return self._limits[watts]

    def cap_s(self, run_s: float) -> float:
        """The time of the last of the caps, ``run_s`` seconds into the run: a plan's times are the last."""
        return self._parts[-1].cap_s(run_s)

    def why_paused(self, run_s: float) -> str | None:
        """Why nothing may run now, if the watts do not say it."""
        for part in self._parts:
            if not part.source.watts(part.cap_s(run_s)):
                return part.source.why_paused(part.cap_s(run_s))
        return None


class _Part:
    """One source with its own clock; ``is_bound``: it has moments on the clock on the wall."""

    def __init__(self, source: CapSource, clock: Clock, is_virtual: bool):
        self.source, self._clock = source, clock
        self._offset_s = 0.0
        self.is_bound = not is_virtual and source.elapsed_s(clock()) is not None

    def begin(self, run_s: float) -> None:
        if self.is_bound:
            self._offset_s = self._elapsed_s() - run_s
            self.source.watts(run_s + self._offset_s)

    def look(self, now_s: Callable[[], float]) -> None:
        if self.is_bound:
            before_s, elapsed_s = now_s(), self._elapsed_s()
            if now_s() - before_s < APART_S:
                self._offset_s = elapsed_s - before_s

    def cap_s(self, run_s: float) -> float:
        return max(0.0, run_s + self._offset_s) if self.is_bound else run_s

    def next_change_s(self, run_s: float) -> float | None:
        cap_s = self.cap_s(run_s)
        change_s = self.source.next_change_s(cap_s)
        return None if change_s is None else change_s + (run_s - cap_s)

    def _elapsed_s(self) -> float:
        elapsed_s = self.source.elapsed_s(self._clock())
        assert elapsed_s is not None
        return elapsed_s
