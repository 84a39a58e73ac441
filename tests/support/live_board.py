"""A live Orin Nano on wall-clock time: its files, its agent, and programs that run on it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
CLOCK = "sys/class/devfreq/17000000.gpu"
SENSOR = "sys/class/hwmon/hwmon1"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
COMMAND = [sys.executable, "-m", "wattune"]

_MOVING = re.compile(r"(scaling_)?cur_freq|(clk_)?rate|(in|curr)\d_input|in_(power|current)\d_input|temp|cur_state")
"""Names of files that move by themselves."""


def wait_for(is_so: Callable[[], object], seconds: float = 30.0) -> bool:
    """Whether it came true in time."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if is_so():
            return True
        time.sleep(0.005)
    return bool(is_so())


class Board:
    """The files of the board below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.found = self._files()

    def _files(self) -> dict[str, str]:
        paths = (path for part in ("sys", "etc", "proc", "var/lib/nvpmodel") for path in (self.root / part).rglob("*"))
        still = (path for path in paths if path.is_file() and not _MOVING.fullmatch(path.name))
        return {str(path): path.read_text(encoding="utf-8", errors="replace").rstrip() for path in still}

    def is_as_found(self) -> bool:
        """Whether every file that does not move by itself is as at first, and nothing is left to bring back."""
        return self._files() == self.found and not self.snapshots()

    def changes(self) -> dict[str, tuple[str | None, str | None]]:
        """What is not as found."""
        now = self._files()
        paths = self.found.keys() | now.keys()
        return {p: (self.found.get(p), now.get(p)) for p in paths if self.found.get(p) != now.get(p)}

    def snapshots(self) -> list[Path]:
        """What a process keeps of the board while it controls it."""
        return sorted((self.root / "var/lib/wattune").glob("board-*.json"))

    def limit_mhz(self) -> float:
        """The highest clock that is allowed now."""
        return float((self.root / CLOCK / "max_freq").read_text() or "nan") / 1e6

    def limits(self) -> tuple[str, str]:
        """The lowest and the highest clock that are allowed now, in Hz."""
        low, high = ((self.root / CLOCK / name).read_text().strip(" \n\0") for name in ("min_freq", "max_freq"))
        return low, high

    def is_pinned(self) -> bool:
        """Whether the clock is held at one place."""
        return len(set(self.limits())) == 1

    def is_at(self, mhz: float) -> bool:
        """Whether the clock is held at this place."""
        return self.limits() == (f"{round(1e6 * mhz)}",) * 2

    def state(self) -> tuple[str, ...]:
        """All that pinning the GPU's clock changes."""
        return *self.limits(), (self.root / CLOCK / "device" / "railgate_enable").read_text().strip()

    def power_w(self) -> float:
        """What the sensor of the whole board shows."""
        folder = self.root / SENSOR
        return float((folder / "in1_input").read_text()) * float((folder / "curr1_input").read_text()) / 1e6

    def works(self, pid: int) -> None:
        """This process and its children are the board's load from now on."""
        (self.root / "load").write_text(str(pid), encoding="utf-8")

    def load(self, share: float | None) -> None:
        """How busy the board is, whatever its processes do; None: as busy as they are."""
        if share is None:
            (self.root / "load_fraction").unlink(missing_ok=True)
        else:
            (self.root / "load_fraction").write_text(str(share), encoding="utf-8")


@contextmanager
def live(
    root: Path, family: str = "orin-nano", *, throttled: bool = True, load: float | None = None, seconds: int = 300
) -> Iterator[Board]:
    """A live board; ``throttled``: its clock holds back the processes that work on it. Without ``load`` it is as busy
    as they are."""
    command = [sys.executable, "-m", "tests.support.live.daemon", str(root), "--family", family]
    command += ["--seconds", str(seconds)]
    command += ["--throttle-pid-file", str(root / "load")] if throttled else []
    with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("live")
            board = Board(root)
            if load is not None:
                board.load(load)
            yield board
        finally:
            process.terminate()


@contextmanager
def wattune(board: Board, *arguments: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """The command line as a process, which is the board's load."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
    with subprocess.Popen([*COMMAND, *map(str, arguments)], env=ENVIRONMENT, text=True, **pipes) as process:
        try:
            board.works(process.pid)
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()
