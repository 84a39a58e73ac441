"""The time of a cap that changes: moments on the clock on the wall, which may be set meanwhile, or seconds of a run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Final

from wattune.cap_trace import MovingCap

JUMP_S: Final = 1.0
"""Least change of the clock on the wall against the run's own time, between two looks, that counts as a jump."""

Clock = Callable[[], datetime]


def wall_clock() -> datetime:
    """The present moment by the machine's clock, with its time zone."""
    return datetime.now(timezone.utc)


class CapClock:
    """The time of a cap from the time of a run, in seconds.

    A trace of moments is bound to the clock on the wall: its time is that of the present moment, also after NTP or a
    user has set the clock, or the machine slept. Before its first row, the first one holds. All other caps have the
    run's own time. ``is_virtual``: the run's time is a simulated one, which no clock on a wall knows.
    """

    def __init__(self, cap: MovingCap, *, is_virtual: bool, clock: Clock = wall_clock):
        self._cap, self._clock = cap, clock
        self._offset_s = 0.0
        self._is_bound = not is_virtual and cap.elapsed_s(clock()) is not None

    def begin(self, run_s: float) -> None:
        """Find the time of the cap, ``run_s`` seconds into the run. Raises: InputError before the trace's first row."""
        if self._is_bound:
            self._offset_s = self._elapsed_s() - run_s
            self._cap.watts(run_s + self._offset_s)

    def look(self, now_s: Callable[[], float]) -> float:
        """Follow the clock on the wall; ``now_s`` gives the time of the run.

        Returns: seconds by which the clock has jumped since the last look, negative if back; 0 if it has not.
        """
        if not self._is_bound:
            return 0.0
        before_s = now_s()
        elapsed_s = self._elapsed_s()
        if now_s() - before_s >= JUMP_S / 2:
            return 0.0  # this thread had to wait in between: the two times do not belong together
        jump_s, self._offset_s = elapsed_s - before_s - self._offset_s, elapsed_s - before_s
        return jump_s if abs(jump_s) >= JUMP_S else 0.0

    def cap_s(self, run_s: float) -> float:
        """The time of the cap, ``run_s`` seconds into the run."""
        return max(0.0, run_s + self._offset_s) if self._is_bound else run_s

    def _elapsed_s(self) -> float:
        elapsed_s = self._cap.elapsed_s(self._clock())
        assert elapsed_s is not None
        return elapsed_s


def jump_text(jump_s: float) -> str:
    """A jump of the clock in words."""
    direction = "forward" if jump_s > 0 else "back"
    return f"the clock jumped {direction} by {abs(jump_s):.0f} s against the run's own time; the caps follow it"
