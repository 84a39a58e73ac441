"""Black-box programs whose step time and power depend on batch size and clock, through plain files."""

from __future__ import annotations

import os
import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.support.device_examples import FileDevice

from wattune.devices import Knob

TRAINER = """
import argparse, os, pathlib, signal, sys, time

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--batch", type=int)
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--say", default="step {n} took {s:.6f} s")
parser.add_argument("--fits", type=int, default=10**9)
parser.add_argument("--dies", default="")
parser.add_argument("--hold", action="store_true")
parser.add_argument("--stubborn", action="store_true")
given = parser.parse_args()
(given.folder / "pid").write_text(str(os.getpid()))
with open(given.folder / "calls", "a") as calls:
    print(given.batch, (given.folder / "cur_freq").read_text().strip(), file=calls)


def power(watts):
    (given.folder / "next").write_text(str(int(1000 * watts)))
    os.replace(given.folder / "next", given.folder / "power1_input")


def end(*_):
    power(1.5)
    os._exit(0)


signal.signal(signal.SIGTERM, signal.SIG_IGN if given.stubborn else end)


def clock():
    return float((given.folder / "cur_freq").read_text() or 100)


def take(seconds):
    time.sleep(seconds)
    passed = given.folder / "passed_us"
    so_far = int(passed.read_text()) if passed.exists() else 0
    (given.folder / "next").write_text(str(so_far + round(1e6 * seconds)))
    os.replace(given.folder / "next", passed)


power(1.5)
take(0.2)
if given.batch > given.fits:
    if given.dies == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(given.dies)
lines = []
for n in range(given.steps):
    power(2 + clock() / 100 + given.batch / 8)
    seconds = given.batch / clock() / 4
    take(seconds)
    lines.append(given.say.format(n=n, s=seconds, ms=1000 * seconds, samples=given.batch * (n + 1)))
    if not given.hold:
        print("\\n".join(lines))
        lines = []
print("\\n".join(lines), flush=True)
take(0.2)
power(1.5)
take(0.2)
"""
"""A step takes batch / clock / 4 seconds and 2 + clock / 100 + batch / 8 watts; before and after it, 1.5 W.

Power falls 0.2 s after the last line: a busy machine may be late to read that line, which ends what is measured.

What it prints is what it slept for, without what a busy machine adds; ``passed_us`` has the sum of it in microseconds.
"""

PATTERN = r"took ([\d.]+) s"


def trainer(folder: Path, *options: str) -> str:
    """The command of ``TRAINER``, which works on the files of a FileDevice in the folder."""
    path = folder / "train.py"
    path.write_text(TRAINER)
    words = [sys.executable, "-S", str(path), str(folder), "--batch", "{batch_size}", *options]
    return shlex.join(words).replace("'{batch_size}'", "{batch_size}").replace("'{steps}'", "{steps}")


def step_s(batch_size: int, clock: float) -> float:
    """Of ``TRAINER``."""
    return batch_size / clock / 4


def power_w(batch_size: int, clock: float) -> float:
    """Of ``TRAINER``."""
    return 2 + clock / 100 + batch_size / 8


def is_gone(folder: Path, seconds: float = 2.0) -> bool:
    """Whether ``TRAINER`` has ended."""
    pid, end_s = int((folder / "pid").read_text()), time.monotonic() + seconds
    while time.monotonic() < end_s:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def running(text: object) -> list[Path]:
    """The processes with this text in their command lines."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found += [path] if str(text) in path.read_text() else []
    return found


class Files(FileDevice):
    """A device of files, idle at first."""

    spec = "files:here"

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.power_file.write_text("1500\n")


class OneClock(Files):
    """With no choice, so that a test takes one cell."""

    knobs = (Knob("clock_mhz", (100.0,)),)


class ProgramsTime(OneClock):
    """On the time that its programs slept for, which is the same on every machine."""

    def now_s(self) -> float:
        """Seconds."""
        path = self.power_file.with_name("passed_us")
        return int(path.read_text()) / 1e6 if path.exists() else 0.0
