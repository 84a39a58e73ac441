"""Holding processes back, and letting them go again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.live.tasks import CYCLE_S, SCAN_S, Throttle, state
from tests.support.live_board import wait_for

STARTS_A_CHILD = "import subprocess as s; c = s.Popen(['sleep', '60']); print(c.pid, flush=True); c.wait()"


def test_what_loses_its_parent_while_it_stands_still_goes_on(tmp_path: Path) -> None:
    (tmp_path / "pids").touch()
    with subprocess.Popen([sys.executable, "-c", STARTS_A_CHILD], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            (tmp_path / "pids").write_text(str(parent.pid), encoding="utf-8")
            throttle, now_s = Throttle(tmp_path / "pids"), 100.0
            throttle.step(now_s, 0.0)
            assert wait_for(lambda: (state(parent.pid), state(child)) == ("T", "T"))
            parent.kill()
            parent.wait()
            throttle.step(now_s + SCAN_S + CYCLE_S, 0.0)
            assert wait_for(lambda: state(child) == "S")
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_process_runs_for_its_share_of_each_cycle(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            (tmp_path / "pids").write_text(str(process.pid), encoding="utf-8")
            throttle = Throttle(tmp_path / "pids")
            for begin in (0.0, 1.5, 3.0):  # later than the end of the cycle before
                for tenth in range(10):
                    throttle.step(100.0 + (begin + tenth / 10) * CYCLE_S, 0.25)
                    assert wait_for(lambda stopped=tenth >= 3: (state(process.pid) == "T") == stopped)
            throttle.release()
            assert wait_for(lambda: state(process.pid) != "T")
        finally:
            process.kill()
