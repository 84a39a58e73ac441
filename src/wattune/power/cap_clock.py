"""The time of caps in a run: moments on the clock on the wall, which may be set meanwhile, or seconds of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Final

from wattune.cap_source import CapSource

JUMP_S: Final = 1.0
"""Least change of the clock on the wall against the run's own time, between two looks, that counts as a jump."""

Clock = Callable[[], datetime]


def wall_clock() -> datetime:
    """The present moment by the machine's clock, with its time zone."""
    return datetime.now(timezone.utc)


class CapInRun:
    """The caps of a source over the time of a run, in seconds since the run began.

    A cap at moments is bound to the clock on the wall: it is that of the present moment, also after NTP or a user has
    set the clock, or the machine slept. Before its first row, the first one holds. All other caps have the run's own
    time. ``is_virtual``: the run's time is a simulated one, which no clock on a wall knows.
    """

    def __init__(self, source: CapSource, *, is_virtual: bool, clock: Clock = wall_clock):
        self.source = source
        self._parts = [_Part(one, clock, is_virtual) for one in source.parts]

    def begin(self, run_s: float) -> None:
        """Find the time of the caps, ``run_s`` seconds into the run. Raises: InputError before a trace's first row."""
        for part in self._parts:
            part.begin(run_s)

    def look(self, now_s: Callable[[], float]) -> float:
        """Follow the clock on the wall; ``now_s`` gives the time of the run.

        Returns: seconds by which the clock has jumped since the last look, negative if back; 0 if it has not.
        """
        jumps_s = [part.look(now_s) for part in self._parts]
        return max(jumps_s, key=abs)

    def watts(self, run_s: float) -> float:
        """The lowest cap ``run_s`` seconds into the run. Raises: InputError."""
        return min(part.source.watts(part.cap_s(run_s)) for part in self._parts)

    def next_change_s(self, run_s: float) -> float | None:
        """The run's time of the next announced change; None if there is none."""
        changes_s = [change_s for part in self._parts if (change_s := part.next_change_s(run_s)) is not None]
        return min(changes_s, default=None)

    def changes_s(self, run_s: float, within_s: float) -> Iterator[float]:
        """The run's times of the announced changes of the next ``within_s`` seconds."""
        change_s = self.next_change_s(run_s)
        while change_s is not None and change_s <= run_s + within_s:
            yield change_s
            change_s = self.next_change_s(change_s)

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

    def look(self, now_s: Callable[[], float]) -> float:
        if not self.is_bound:
            return 0.0
        before_s = now_s()
        elapsed_s = self._elapsed_s()
        if now_s() - before_s >= JUMP_S / 2:
            return 0.0  # this thread had to wait in between: the two times do not belong together
        jump_s, self._offset_s = elapsed_s - before_s - self._offset_s, elapsed_s - before_s
        return jump_s if abs(jump_s) >= JUMP_S else 0.0

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


def jump_text(jump_s: float) -> str:
    """A jump of the clock in words."""
    direction = "forward" if jump_s > 0 else "back"
    return f"the clock jumped {direction} by {abs(jump_s):.0f} s against the run's own time; the caps follow it"
