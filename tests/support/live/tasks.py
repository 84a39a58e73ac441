"""Processes that load a live board: how busy they are, and how they are held back."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

USAGE_S = 0.1
"""Over how long their use of the processor is taken; the kernel counts in hundredths of a second."""

CYCLE_S = 0.05
"""One cycle of running and standing still."""

SCAN_S = 0.25
"""How often new children are looked for."""


def ids_in(path: Path) -> list[int]:
    """The process ids in a file, in any layout; none where there is no such file."""
    try:
        return [int(word) for word in path.read_text(encoding="utf-8").split() if word.isdigit()]
    except OSError:
        return []


def with_children(pids: list[int]) -> list[int]:
    """These processes and everything that they started."""
    if not pids:
        return []
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{entry}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry))
    found = list(pids)
    for pid in found:
        found += [child for child in children.get(pid, []) if child not in found]
    return found


class Usage:
    """How many processors the processes keep busy, by their time in /proc."""

    def __init__(self) -> None:
        self._seen_s = 0.0
        self._used: dict[int, int] = {}
        self._tree: list[int] = []
        self._scanned_s = 0.0

    def step(self, now_s: float, pids: list[int]) -> float | None:
        """The use since the last answer; None until it is time for the next one."""
        if now_s - self._seen_s < USAGE_S:
            return None
        if now_s - self._scanned_s >= SCAN_S or not set(pids) <= set(self._tree):
            self._tree, self._scanned_s = with_children(pids), now_s
        used = {pid: ticks for pid in self._tree if (ticks := _ticks(pid)) is not None}
        gone = sum(ticks - self._used.get(pid, ticks) for pid, ticks in used.items())
        busy = gone / os.sysconf("SC_CLK_TCK") / (now_s - self._seen_s)
        self._seen_s, self._used = now_s, used
        return max(0.0, busy)


class Throttle:
    """Lets the processes named in a file run for a share of each cycle only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin_s = 0.0
        self._scanned_s = 0.0
        self._tree: list[int] = []
        self._is_stopped = False

    def step(self, now_s: float, share: float) -> None:
        """Stop or continue them, as the moment in the cycle wants it."""
        if now_s - self._scanned_s >= SCAN_S:
            self._scan()
            self._scanned_s = now_s
        if now_s - self._begin_s >= CYCLE_S:
            self._begin_s = now_s
        stop = now_s - self._begin_s >= share * CYCLE_S
        if stop != self._is_stopped or (stop and now_s == self._scanned_s):
            _signal(self._tree, signal.SIGSTOP if stop else signal.SIGCONT)
            self._is_stopped = stop

    def release(self) -> None:
        """Let all of them run again."""
        self._scan()
        _signal(self._tree, signal.SIGCONT)

    def _scan(self) -> None:
        """What belongs to them now. One whose parent was killed does not any more, and would stand still for ever."""
        before, self._tree = self._tree, with_children(ids_in(self._path))
        _signal([pid for pid in before if pid not in self._tree], signal.SIGCONT)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        if pid not in (os.getpid(), 1):
            with contextlib.suppress(OSError):
                os.kill(pid, number)


def _ticks(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[11]) + int(fields[12])
