"""Steps of a program that prints their times, as stamps: its output is read on its way."""

from __future__ import annotations

import math
import os
import re
import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from wattune import units
from wattune.program.rounds import StepPage

SHORTEST_S = 1e-6
"""Shortest step time that a number can mean."""

CHILD_S = 1.0
"""Time for which the output is waited for that a child prints after the program has ended."""

LOOK_S = 0.2
"""Time between two looks whether the program has ended."""

LONGEST = 1 << 16
"""Bytes of a line; a program may print none for days."""


def printed_s(found: re.Match[str]) -> float | None:
    """Seconds of a step time in a line, printed in milliseconds if the group is named ms; None for other text."""
    # The group may take no part in the match.
    return units.read((found[1] or "") + ("ms" if "ms" in found.re.groupindex else ""), "s")


class PrintedRounds:
    """Counts rounds by step times: as many as fit between two of them at the pace of the second."""

    def __init__(self, pattern: re.Pattern[str], page: StepPage):
        self._pattern, self._page = pattern, page
        self._rounds = 0.0
        self._last_s: float | None = None
        self._line = b""

    def take(self, data: bytes, time_s: float) -> None:
        """Take a piece of the output. A carriage return ends a line too, as progress bars have it."""
        *lines, self._line = re.split(rb"[\r\n]", self._line + data)
        self._line = self._line[-LONGEST:]
        for line in lines:
            if (found := self._pattern.search(line.decode("utf-8", "replace"))) is not None:
                self._step(found, time_s)

    def _step(self, found: re.Match[str], time_s: float) -> None:
        step_s = printed_s(found)
        if step_s is None or step_s < SHORTEST_S:
            return
        if self._last_s is not None:
            self._rounds += (time_s - self._last_s) / step_s
        self._last_s = time_s
        if self._rounds >= 1:
            self._page.stamp(int(self._rounds), time_s)


@contextmanager
def printed_steps(pattern: re.Pattern[str], page: StepPage) -> Iterator[None]:
    """Context in which the standard output of programs that are started goes on to this process's own, and their step
    times by this pattern become stamps."""
    sys.stdout.flush()
    own = os.dup(1)
    read, write = os.pipe()
    os.dup2(write, 1)
    os.close(write)
    rounds = PrintedRounds(pattern, page)

    ended_s = math.inf

    def is_more() -> bool:
        while True:
            is_late = time.monotonic() >= ended_s + CHILD_S
            if select.select([read], [], [], 0.0 if is_late else LOOK_S)[0]:
                return True
            if is_late:
                return False

    def forward() -> None:
        is_open = True
        while is_more() and (data := os.read(read, 1 << 14)):
            with suppress(Exception):  # the output has to go on, whatever is in it
                rounds.take(data, time.monotonic())
            try:
                while is_open and data:
                    data = data[os.write(own, data) :]
            except OSError:  # the reader has exited, as `head` does; the program goes on
                is_open = False

    reading = threading.Thread(target=forward, name="output", daemon=True)
    reading.start()
    try:
        yield
    finally:
        os.dup2(own, 1)
        ended_s = time.monotonic()
        reading.join()  # what was printed is passed on, however slow the reader is
        os.close(read)
        os.close(own)
