"""Notices that this process itself stood still: a time without a sign of life is then nobody's fault."""

import threading
from typing import Callable

__all__ = ["STILL_S", "Pulse"]

STILL_S = 1.5
"""Time without any call of ``beat`` after which this process was not running, however busy the machine is."""


class Pulse:
    """Several threads call ``beat``, each twice a second or more often: where none did for long, all stood still.

    SIGSTOP, a frozen container and a machine that is out of memory do that. ``now_s`` is a clock that does not count a
    pause that is known of.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()
        self._last_s = now_s()
        self.since_s = self._last_s
        """Since when this process has run without standing still."""

    def beat(self) -> float:
        """A sign of life; for how long there was none before it, where that was long, else 0."""
        with self._lock:
            now_s = self._now_s()
            still_s, self._last_s = now_s - self._last_s, now_s
            if still_s < STILL_S:
                return 0.0
            self.since_s = now_s
            return still_s
