"""Rounds of a program that stamps its steps: which process they are of, and how long they take."""

from __future__ import annotations

import math
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from typing_extensions import Self

from wattune.errors import OutputError
from wattune.program.hook.sitecustomize import FORMAT, SLOT, SLOTS, VARIABLE

HOOK = Path(__file__).parent / "hook"
"""Folder that a program needs on ``PYTHONPATH`` to stamp its steps."""

SILENT_S = 30.0
"""Time for which the followed process may lag behind the newest stamp of another one before that is followed."""

GAP = 2.5
"""Times the median from which on an interval counts as a gap: an evaluation, a checkpoint, a first compilation."""


class Stamp(NamedTuple):
    """State of a program: rounds so far, the time of the last one (``CLOCK_MONOTONIC``, seconds), and what they are."""

    pid: int
    rounds: int
    time_s: float
    marker: int


class StepPage:
    """The page of memory that programs stamp, as a context. It follows one process for as long as that lives.

    Raises: OutputError if there is no room for the page.
    """

    def __enter__(self) -> Self:
        self._pid = 0
        folders = "/dev/shm", tempfile.gettempdir()
        for folder in folders:
            try:
                self._file, self._path = tempfile.mkstemp(prefix="wattune-steps-", dir=folder)
            except OSError:
                continue
            try:
                # A program that writes to a mapped page without memory behind it is killed by SIGBUS.
                os.posix_fallocate(self._file, 0, SLOTS * SLOT)
            except OSError:
                self.__exit__()
                continue
            return self
        raise OutputError("no room for the page of a program's steps", value=" and ".join(folders), hint="free 4 KiB")

    def __exit__(self, *_: object) -> None:
        file, self._file = self._file, -1  # another file may have the number next
        os.close(file)
        os.unlink(self._path)

    @contextmanager
    def stamped(self) -> Iterator[None]:
        """Context in which programs that are started stamp their steps here."""
        before = {name: os.environ.get(name) for name in (VARIABLE, "PYTHONPATH")}
        own = before["PYTHONPATH"]
        os.environ.update({VARIABLE: self._path, "PYTHONPATH": str(HOOK) + (os.pathsep + own if own else "")})
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    def stamp(self, rounds: int, time_s: float) -> None:
        """Stamp for a program that does not."""
        if self._file >= 0:
            os.pwrite(self._file, struct.pack(FORMAT, os.getpid(), rounds, time_s, 0), 0)

    def read(self) -> Stamp | None:
        """The latest stamp of the followed process; None before the first one."""
        stamps = self._read()
        if stamps != self._read():  # a write in between
            return None
        newest_s = max((one.time_s for one in stamps), default=0.0)
        alive = [one for one in stamps if newest_s - one.time_s < SILENT_S and os.path.exists(f"/proc/{one.pid}")]
        if not alive:
            return None
        followed = next((one for one in alive if one.pid == self._pid), None)
        if followed is None:  # of several, the slowest: the others wait for it
            followed = min(alive, key=lambda one: one.rounds)
            self._pid = followed.pid
        return followed

    @property
    def most_rounds(self) -> int:
        """Most rounds of any process so far, alive or not."""
        return max((one.rounds for one in self._read()), default=0)

    def _read(self) -> list[Stamp]:
        page = os.pread(self._file, SLOTS * SLOT, 0)
        return [Stamp(*slot) for slot in struct.iter_unpack(FORMAT, page) if slot[0] > 0 and slot[1] > 0]


class Interval(NamedTuple):
    """A number of rounds between two moments, in seconds."""

    begin_s: float
    end_s: float
    rounds: int

    @property
    def step_s(self) -> float:
        """Mean time of a round."""
        return (self.end_s - self.begin_s) / self.rounds


def ordinary(intervals: Sequence[Interval]) -> list[Interval]:
    """The intervals that are steps: at most ``GAP`` times the median."""
    if not intervals:
        return []
    longest_s = GAP * median_s(intervals)
    return [one for one in intervals if one.step_s <= longest_s]


def median_s(intervals: Sequence[Interval]) -> float:
    """Median time of a round."""
    passed, rounds = 0, sum(one.rounds for one in intervals)
    for one in sorted(intervals, key=lambda one: one.step_s):
        passed += one.rounds
        if 2 * passed >= rounds:
            return one.step_s
    return math.inf
