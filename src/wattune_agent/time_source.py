"""The clock of guards, leases and programs: the machine's, unless a test substitutes its own."""

import threading
import time

__all__ = ["TimeSource"]


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
