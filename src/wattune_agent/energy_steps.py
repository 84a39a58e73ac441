"""Mean power from an energy counter: a processor's, or one that moves in steps, such as an NVIDIA card's.

Of a counter that moves in steps, a difference between two arbitrary moments would be off by up to a step at either
end. So a reading waits for the next step: at most a tenth of a second, and the first one for a few of them.
"""

import math
import threading
import time
from collections import deque
from typing import Callable, Deque, Tuple

from wattune_agent.errors import NoReading

REFRESH_S = 0.1
"""Time between fresh values of a card's counter. Source: ml.energy, "Thermally stable profiling"."""

WINDOW_S = 0.5
"""Window of a card's power: five refreshes, whose ends are known to a few milliseconds."""

EARLY = 0.9
"""Share of the window that is enough, since a reader with a period of 0.1 s is sometimes a little early."""

LONGEST_S = 2.5
"""After this long without a read of a counter that is always fresh, the mean since then says little about now: a new
window begins. That of a counter in steps would hold most of the pause, so there it begins after a window."""

POLL_S = 0.005
"""Time between reads of the counter about when its next refresh is due."""

PAUSE_S = 0.02
"""Time between reads otherwise: each one is a call of the driver, which may take milliseconds."""

STILL_S = 1.0
"""Time without a change after which a counter counts as broken: a card always draws some power."""

MOST_W = 1e4
"""Highest plausible power of a card: a counter that moves faster was reset, or is broken."""

# Without numbers: a failure that repeats ten times a second is reported once if its text is always the same.
STILL = "the energy counter stands still"
JUMP = "the energy counter jumped by an impossible amount"


class EnergySteps:
    """Power as the difference of a counter between two of its refreshes. It may be called from several threads, which
    do not shorten each other's window.

    ``energy_j`` reads the counter, in joules, and raises what a reading should raise. ``refresh_s``: time between
    fresh values; 0 for a counter that is always fresh. ``most_w``: highest plausible power.
    """

    def __init__(
        self,
        energy_j: Callable[[], float],
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        *,
        refresh_s: float = REFRESH_S,
        window_s: float = WINDOW_S,
        most_w: float = MOST_W,
    ) -> None:
        self._energy_j = energy_j
        self._now_s = now_s
        self._sleep = sleep
        self._refresh_s = refresh_s
        self._enough_s = EARLY * window_s
        self._shortest_s = 2 * refresh_s or self._enough_s
        self._longest_s = window_s + refresh_s if refresh_s else LONGEST_S
        self._wait_s = window_s
        self._most_w = most_w
        self._lock = threading.Lock()
        self._refreshes: Deque[Tuple[float, float]] = deque()

    def read_w(self) -> float:
        """Mean power over about the window. Raises: NoReading if the counter stands still or jumps."""
        with self._lock:
            known = self._refreshes
            if known and self._now_s() - known[-1][0] > self._longest_s:
                known.clear()
            known.append(self._next_refresh())
            while len(known) > 1 and known[-1][0] - known[1][0] >= self._enough_s:
                known.popleft()
            while known[-1][0] - known[0][0] < self._shortest_s:
                if not self._refresh_s:
                    self._sleep(self._wait_s - (known[-1][0] - known[0][0]))
                known.append(self._next_refresh())
            (begin_s, begin_j), (end_s, end_j) = known[0], known[-1]
            power_w = (end_j - begin_j) / (end_s - begin_s)
            if not 0.0 < power_w <= self._most_w:
                known.clear()
                known.append((end_s, end_j))  # a counter that was reset continues from here
                raise NoReading(STILL if power_w == 0.0 else JUMP)
            return power_w

    def _next_refresh(self) -> Tuple[float, float]:
        """Time and joules of the next refresh: sleep until shortly before it is due, then look often."""
        begin_s = self._now_s()
        if not self._refresh_s:
            return begin_s, self._energy_j()
        due_s = math.inf  # unknown at first, and after a pause
        if self._refreshes and begin_s - self._refreshes[-1][0] < 2 * self._refresh_s:
            due_s = self._refreshes[-1][0] + self._refresh_s
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
                raise NoReading(STILL)
            before_s = now_s
