"""Holding processes back, and letting them go again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.live.tasks import CYCLE_S, SCAN_S, Throttle

STARTS_A_CHILD = "import subprocess as s; c = s.Popen(['sleep', '60']); print(c.pid, flush=True); c.wait()"


def becomes(is_so: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + 5
    while not is_so() and time.monotonic() < end_s:
        time.sleep(0.01)
    return is_so()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def test_what_loses_its_parent_while_it_stands_still_goes_on(tmp_path: Path) -> None:
    (tmp_path / "pids").touch()
    with subprocess.Popen([sys.executable, "-c", STARTS_A_CHILD], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            (tmp_path / "pids").write_text(str(parent.pid), encoding="utf-8")
            throttle, now_s = Throttle(tmp_path / "pids"), 100.0
            throttle.step(now_s, 0.0)
            assert becomes(lambda: (state(parent.pid), state(child)) == ("T", "T"))
            parent.kill()
            parent.wait()
            throttle.step(now_s + SCAN_S + CYCLE_S, 0.0)
            assert becomes(lambda: state(child) == "S")
        finally:
            os.kill(child, signal.SIGKILL)
