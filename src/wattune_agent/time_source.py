"""The clock of guards, leases and programs: the machine's, or a test's; and pauses of this process.

During a pause a missing reading is not a fault.
"""

import threading
import time
from typing import Callable


class TimeSource:
    """The machine's monotonic time.

    Timeouts of sockets and locks use real time: they end a wait for another thread or process, without virtual time.
    """

    def now_s(self) -> float:
        """Monotonic time in seconds, from an arbitrary start."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        time.sleep(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until ``event`` is set, at most ``seconds``; True if it is set."""
        return event.wait(seconds)


STILL_S = 1.5
"""Time without any call of ``beat`` that shows that this process was not running, however busy the machine is."""


class Pulse:
    """A heartbeat: several threads call ``beat``, each at least twice a second; a long gap means that all stood still.

    Causes are SIGSTOP, a frozen container or a machine that is out of memory. ``now_s`` is a clock that does not count
    known pauses.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._last_s = now_s()
        self.since_s = self._last_s
        """Start of the time that this process has run without a pause."""

    def beat(self) -> float:
        """Record a sign of life; returns the length of the gap before it if that was long, otherwise 0."""
        with self._lock:
            now_s = self._now_s()
            still_s, self._last_s = now_s - self._last_s, now_s
            if still_s < STILL_S:
                return 0.0
            self.since_s = now_s
            return still_s
