"""Mean power from an energy counter that moves in steps, such as an NVIDIA card's.

A difference between two arbitrary moments would be off by up to a step at either end, so a reading waits for the next
step: at most a tenth of a second, and the first one for a few of them.
"""

import math
import threading
import time
from collections import deque
from typing import Callable, Deque, Tuple

from wattune_agent.errors import NoReading

__all__ = ["REFRESH_S", "WINDOW_S", "EnergySteps"]

REFRESH_S = 0.1
"""Time between fresh values of the counter. Source: ml.energy, "Thermally stable profiling"."""

WINDOW_S = 0.5
"""Window of the power: five refreshes, whose ends are known to a few milliseconds."""

SHORTEST_S = 0.2
"""Least window of the first reading, and of one after a pause."""

POLL_S = 0.005
"""Time between reads of the counter about when its next refresh is due."""

PAUSE_S = 0.02
"""Time between reads otherwise: each one is a call of the driver, which may take milliseconds."""

STILL_S = 1.0
"""Time without a change after which a counter counts as broken: a card always draws some power."""


class EnergySteps:
    """Power as the difference of a counter between two of its refreshes. It may be called from several threads.

    ``energy_j`` reads the counter, in joules, and raises what a reading should raise.
    """

    def __init__(
        self,
        energy_j: Callable[[], float],
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._energy_j = energy_j
        self._now_s = now_s
        self._sleep = sleep
        self._lock = threading.Lock()
        self._refreshes: Deque[Tuple[float, float]] = deque()

    def read_w(self) -> float:
        """Mean power over about the last half second. Raises: NoReading if the counter stands still or falls."""
        with self._lock:
            known = self._refreshes
            known.append(self._next_refresh())
            while known[-1][0] - known[0][0] > WINDOW_S + REFRESH_S:
                known.popleft()
            while known[-1][0] - known[0][0] < SHORTEST_S:
                known.append(self._next_refresh())
            (begin_s, begin_j), (end_s, end_j) = known[0], known[-1]
            if end_j < begin_j:  # the driver was loaded again
                known.clear()
                raise NoReading("the energy counter fell")
            return (end_j - begin_j) / (end_s - begin_s)

    def _next_refresh(self) -> Tuple[float, float]:
        """Time and joules of the next refresh: sleep until shortly before it is due, then look often."""
        begin_s = self._now_s()
        due_s = math.inf  # unknown at first, and after a pause
        if self._refreshes and begin_s - self._refreshes[-1][0] < 2 * REFRESH_S:
            due_s = self._refreshes[-1][0] + REFRESH_S
            if due_s - PAUSE_S > begin_s:
                self._sleep(due_s - PAUSE_S - begin_s)
        before_j = self._energy_j()
        began_s = before_s = self._now_s()
        while True:
            self._sleep(POLL_S if before_s < due_s + PAUSE_S else PAUSE_S)
            energy_j = self._energy_j()
            now_s = self._now_s()
            if energy_j != before_j:
                return (before_s + now_s) / 2, energy_j
            if now_s - began_s > STILL_S:
                raise NoReading("the energy counter stands still at {:.3f} J".format(energy_j))
            before_s = now_s
