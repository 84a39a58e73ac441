"""A live Orin Nano on wall-clock time: its files, its agent, and programs that run on it."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent.parent
CLOCK = "sys/class/devfreq/17000000.gpu"
SENSOR = "sys/class/hwmon/hwmon1"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
COMMAND = [sys.executable, "-m", "wattune"]

_MOVING = re.compile(r"(scaling_)?cur_freq|(clk_)?rate|(in|curr)\d_input|in_(power|current)\d_input|temp|cur_state")
"""Names of files that move by themselves."""

RISING = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
int main(int count, char **words) {
    volatile double x = 1;
    FILE *load = fopen(words[1], "w");
    double end;
    fprintf(load, "%d", getpid());
    fclose(load);
    usleep(1e6 * atof(words[2]));
    printf("%.6f\n", now());
    fflush(stdout);
    for (end = now() + atof(words[3]); now() < end;) x = x * 1.0000001;
    return 7;
}
"""
"""Names itself as the board's load, is quiet for a while, says when it begins to work, and works for a while."""


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


def compiled(folder: Path) -> Path:
    """The program ``RISING``."""
    source = folder / "rising.c"
    source.write_text(RISING, encoding="utf-8")
    subprocess.run(["cc", "-O1", "-o", str(folder / "rising"), str(source)], check=True)
    return folder / "rising"


class Rise(NamedTuple):
    """One rise of power above the cap. ``program_s``: from when the program began to work until the lower clock was
    written; ``power_s``: from when the board's power was above the cap until then."""

    program_s: float
    power_s: float
    to_mhz: float
    exit_code: int


def rises(board: Board, program: Path, count: int) -> list[Rise]:
    """So many of them, each at another moment between two readings of the guard."""
    tried = (rise(board, program, quiet_s=0.5 + 0.037 * (attempt % 5)) for attempt in range(2 * count + 4))
    found = list(itertools.islice((one for one in tried if one is not None), count))
    assert len(found) == count, "this machine is too busy for a program to draw power"
    return found


def rise(board: Board, program: Path, *, quiet_s: float, clock_mhz: float = 612.0, cap_w: float = 6.0) -> Rise | None:
    """Let a guarded program become busy, and see when its clock comes down. None where the power did not rise above the
    cap, since other programs on this machine kept this one from being busy enough."""
    seen: list[tuple[float, float, float]] = []
    end = threading.Event()

    def watch() -> None:
        while not end.wait(0.001):
            seen.append((time.monotonic(), board.limit_mhz(), board.power_w()))

    command = [*COMMAND, "guard", "--device", "jetson", "--sysfs-root", str(board.root), "--clock", f"{clock_mhz}MHz"]
    command += ["--cap", f"{cap_w}W", "--", str(program), str(board.root / "load"), str(quiet_s), "1"]
    watching = threading.Thread(target=watch)
    watching.start()
    try:
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60)
    finally:
        end.set()
        watching.join()
    began_s = float(done.stdout)
    above_s = next((time_s for time_s, _, power_w in seen if time_s >= began_s and power_w > cap_w), None)
    if above_s is None:
        return None
    # No answer in the second that the program works is an error.
    answered_s, to_mhz = next((t, mhz) for t, mhz, _ in seen if t >= began_s and mhz < clock_mhz - 1)
    return Rise(answered_s - began_s, answered_s - above_s, to_mhz, done.returncode)
