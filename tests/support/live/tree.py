"""A live board behind the agent's ``Tree``, on virtual time, with every fault that files can have.

Everything is also on the disk below ``root`` (so that globs, links and locks work); the files that move are answered
by the board. Time passes when somebody sleeps, and a little with every read and write.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import resource
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.board_records import materialise
from tests.support.live.board import LiveBoard

from wattune_agent.tree import Tree

CALL_S = 1e-4
"""What one read or write costs."""

ERRORS = {
    "forbidden": errno.EACCES,
    "vanished": errno.ENOENT,
    "eio": errno.EIO,
    "refused": errno.EINVAL,
    "busy": errno.EBUSY,
}
"""Faults that are an error of the call."""

ANSWERS = {"garbage": "\x7fELF\x02", "empty": "", "absurd": "999999999999", "negative": "-5040", "zero": "0"}
"""Faults that are another answer to a read; "stuck" is the answer of the moment when it began."""

FAULTS = (*ERRORS, *ANSWERS, "stuck", "ignored")
""""ignored": a write that says it was done."""

_ONLY_WRITES = ("refused", "busy", "ignored")


class Fault:
    """Something wrong with files, from one time to another. ``count`` says how often it was met."""

    def __init__(self, pattern: str, kind: str, on: str, from_s: float, until_s: float) -> None:
        self.pattern, self.kind, self.on, self.from_s, self.until_s = pattern, kind, on, from_s, until_s
        self.count = 0
        self.kept: dict[str, str] = {}

    def meets(self, path: str, call: str, now_s: float) -> bool:
        """Whether this call on this (real) path is hit now."""
        on_time = self.from_s <= now_s < self.until_s
        return on_time and self.on in (call, "both") and fnmatch.fnmatch(path, self.pattern)


class LiveTree(Tree):
    """The tree of a live board of one family; ``board`` is the board itself."""

    def __init__(self, root: str | Path, family: str = "orin-nano") -> None:
        self.board = LiveBoard(family)
        if not os.path.isdir(os.path.join(root, "sys")):
            materialise(self.board.record, str(root))
        super().__init__(str(root))
        self.faults: list[Fault] = []
        self.writes: deque[tuple[float, str, str]] = deque(maxlen=10000)
        """Every write of the agent's: when, real path, text."""
        self.before_write: Callable[[str, str], None] | None = None
        """Called with real path and text before each write; what it raises, the write raises."""
        self._now_s = 0.0
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._moving = set(self.board.paths())
        self._lock = threading.RLock()
        self._shown: dict[str, str] = {}
        self._show()

    # ----------------------------------------------------------------------------------------------------------- time

    def now_s(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        with self._lock:
            until_s = self._now_s + max(0.0, seconds)
            while self._later and self._later[0][0] <= until_s:
                at_s, action = self._later.pop(0)
                self._at(at_s)
                action()
                self._show()
            self._at(until_s)

    def later(self, at_s: float, action: Callable[[], None]) -> None:
        """Let something happen at a time: another writer, a clamp, a kill."""
        self._later.append((at_s, action))
        self._later.sort(key=lambda entry: entry[0])

    # --------------------------------------------------------------------------------------------------------- faults

    def fault(
        self, pattern: str, kind: str, *, on: str | None = None, from_s: float = 0.0, until_s: float = float("inf")
    ) -> Fault:
        """Let calls on matching real paths go wrong; ``on``: "read", "write" or "both" (what the kind allows)."""
        assert kind in FAULTS, kind
        usual = "write" if kind in _ONLY_WRITES else "both" if kind in ERRORS else "read"
        fault = Fault(pattern, kind, on or usual, from_s, until_s)
        self.faults.append(fault)
        return fault

    def rewrite(self, path: str, text: str) -> None:
        """Write as another program does, whatever faults there are."""
        real = self.real(path)
        if real in self._moving:
            self.board.write(real, text)
        else:
            Path(self.inside(path)).write_text(text + "\n", encoding="utf-8")
        self._show()

    def state(self) -> dict[str, str]:
        """The text of every file that keeps what is written: compare the end with the beginning."""
        return {path: self.board.text(path) for path in self.board.state_paths()}

    # ---------------------------------------------------------------------------------------------------------- files

    def read(self, path: str) -> str:
        with self._lock:
            self.sleep(CALL_S)
            real = self.real(path)
            fault = self._fault(real, "read")
            if fault is None:
                return self.board.text(real) if real in self._moving else super().read(path)
            if fault.kind in ERRORS:
                raise self._mapped(_error(fault.kind), path, "read")
            if fault.kind == "stuck":
                if real not in fault.kept:
                    fault.kept[real] = self.board.text(real) if real in self._moving else super().read(path)
                return fault.kept[real]
            return ANSWERS[fault.kind]

    def write(self, path: str, text: str) -> None:
        with self._lock:
            self.sleep(CALL_S)
            real = self.real(path)
            if self.before_write is not None:
                self.before_write(real, text)
            fault = self._fault(real, "write")
            if fault is not None:
                if fault.kind in ERRORS:
                    raise self._mapped(_error(fault.kind), path, "written")
                return
            self.writes.append((self._now_s, real, text))
            if real not in self._moving:
                super().write(path, text)
                return
            try:
                self.board.write(real, text)
            except OSError as error:
                raise self._mapped(error, path, "written") from error
            self._show()

    def exists(self, path: str) -> bool:
        return super().exists(path) and not self._has(path, "vanished", ("read", "write"))

    def writable(self, path: str) -> bool:
        return super().writable(path) and not self._has(path, "forbidden", ("write",))

    def glob(self, pattern: str) -> list[str]:
        return [path for path in super().glob(pattern) if not self._has(path, "vanished", ("read", "write"))]

    # -------------------------------------------------------------------------------------------------------- private

    def _at(self, now_s: float) -> None:
        self._now_s = max(self._now_s, now_s)
        self.board.advance(self._now_s)

    def _fault(self, real: str, call: str) -> Fault | None:
        for fault in self.faults:
            if fault.meets(real, call, self._now_s):
                fault.count += 1
                return fault
        return None

    def _has(self, path: str, kind: str, calls: tuple[str, ...]) -> bool:
        wanted = [fault for fault in self.faults if fault.kind == kind]
        return any(f.meets(self.real(path), call, self._now_s) for f in wanted for call in calls)

    def _show(self) -> None:
        """What can be written is on the disk as well, for those who look there."""
        for path in self.board.state_paths():
            text = self.board.text(path) + "\n"
            if self._shown.get(path) != text:
                # Not truncated first: somebody else may be reading.
                with open(self.inside(path), "r+", encoding="utf-8") as file:
                    file.write(text)
                    file.truncate()
                self._shown[path] = text


@contextmanager
def disk_full() -> Iterator[None]:
    """Let every write that makes a file longer fail, for this process: a real error of the kernel's, also for root."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def _error(kind: str) -> OSError:
    return OSError(ERRORS[kind], os.strerror(ERRORS[kind]))
