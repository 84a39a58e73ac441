"""A live board as plain files on real time: ``python -m tests.support.live.daemon ROOT [--seconds N] ...``.

It watches the files that a board would listen to, answers as its kernel would (a refused text is put back, a clamped
one corrected), lets the clock follow, and keeps rails, heat and counters up to date. How busy it is comes from the
processes whose ids are in ``ROOT/load`` (with all their children), or from the number in ``ROOT/load_fraction``. With
``--throttle-pid-file`` the processes named there are stopped and continued in proportion to the clock, so that work
really takes longer.

What was written is looked at every 2 ms: who reads back at once still reads his own text.
When the files are there it says so in one line, and ``ROOT/ready`` holds its process id.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from pathlib import Path

from tests.support.board_records import materialise
from tests.support.live.board import LiveBoard
from tests.support.live.tasks import Throttle, Usage, ids_in

POLL_S = 0.002
SHOW_S = 0.005
"""How often sensors and clocks are written."""

WIDTH = 24
"""Every file is kept this long, padded with blanks: written in one piece over the old text, never seen half-done."""


class Daemon:
    """The loop around one live board."""

    def __init__(self, root: Path, family: str, throttled: Path | None = None) -> None:
        self.root = root
        self.board = LiveBoard(family, now_s=time.monotonic())
        if not (root / "sys").is_dir():
            materialise(self.board.record, str(root))
        self._usage = Usage()
        self._throttle = Throttle(throttled) if throttled is not None else None
        self._files: dict[str, int] = {}
        self._shown: dict[str, str] = {}
        self._shown_s = 0.0
        for path in self.board.paths():
            # One descriptor for each: its inode stays, and with it the lock that somebody may hold on it.
            self._files[path] = os.open(f"{root}{path}", os.O_RDWR)
            self._show(path, self.board.text(path))

    def run(self, seconds: float) -> None:
        """Live for so long, or until a signal."""
        end_s = time.monotonic() + seconds
        ready = self.root / "ready"
        ready.write_text(f"{os.getpid()}\n", encoding="utf-8")
        print(f"live {self.board.family} in {self.root}", flush=True)
        try:
            while time.monotonic() < end_s:
                self.step(time.monotonic())
                time.sleep(POLL_S)
        finally:
            if self._throttle is not None:
                self._throttle.release()
            ready.unlink(missing_ok=True)

    def step(self, now_s: float) -> None:
        """One look at what was written, and one at the board."""
        self.board.advance(now_s)
        self._take(self._written())
        share = self.board.speed() if self._throttle is not None else 1.0
        if self._throttle is not None:
            self._throttle.step(now_s, share)
        load = self._load(now_s, share)
        if load is not None and load != self.board.load:
            self.board.load = load
        if now_s - self._shown_s >= SHOW_S:
            self._shown_s = now_s
            for path in self._files:
                self._show(path, self.board.text(path))

    def _written(self) -> list[tuple[str, str]]:
        found = self._changed()
        # Of two files that are written one after the other, the first may have been read before and the second after.
        while found and (now := self._changed()) != found:
            found = now
        return found

    def _changed(self) -> list[tuple[str, str]]:
        texts = [(path, self._read(path)) for path in self.board.writable()]
        # Between truncating and writing, a file is empty for a moment.
        return [(path, text) for path, text in texts if text and text != self._shown[path]]

    def _read(self, path: str) -> str:
        return os.pread(self._files[path], 100, 0).decode("utf-8", "replace").strip(" \n\0")

    def _take(self, written: list[tuple[str, str]]) -> None:
        """Two that were written since the last look came in an order that is not known: any that works is right."""
        refused = []
        for path, text in written:
            self._shown[path] = text
            try:
                self.board.write(path, text)
            except OSError:
                refused.append((path, text))
        for path, text in refused:
            with contextlib.suppress(OSError):
                self.board.write(path, text)
        for path, text in written:
            if self._read(path) == text:  # otherwise it was written again
                self._show(path, self.board.text(path))

    def _load(self, now_s: float, share: float) -> float | None:
        fraction = _number(self.root / "load_fraction")
        if fraction is not None:
            return fraction
        busy = self._usage.step(now_s, ids_in(self.root / "load"))
        # A process that may run a third of the time and does is busy all the time.
        return None if busy is None else min(1.0, round(busy / share, 2))

    def _show(self, path: str, text: str) -> None:
        if self._shown.get(path) != text:
            os.pwrite(self._files[path], f"{text:<{WIDTH - 1}}\n".encode(), 0)
            self._shown[path] = text


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _go_first() -> None:
    """Run before this machine's other processes, where that is allowed: no board stands still because they are busy."""
    with contextlib.suppress(AttributeError, OSError):  # not Linux; not allowed
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.live.daemon", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--family", default="orin-nano")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--throttle-pid-file", type=Path)
    arguments = parser.parse_args()

    def end(number: int, frame: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    _go_first()
    with contextlib.suppress(KeyboardInterrupt):
        Daemon(arguments.root, arguments.family, arguments.throttle_pid_file).run(arguments.seconds)


if __name__ == "__main__":
    main()
