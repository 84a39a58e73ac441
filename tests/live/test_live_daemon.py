"""The live board as plain files on real time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.live.board import LiveBoard
from tests.support.live.tasks import state
from tests.support.live_board import live, wait_for

from wattune_agent.discovery import find_board
from wattune_agent.tree import Tree

CLASS = "/sys/class/devfreq/17000000.gpu"
BUSY = "while True: pass"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with live(tmp_path / "board") as board:
        yield board.root
    assert not (board.root / "ready").exists()


def test_clock_rails_and_clamp_follow_what_is_written(root: Path) -> None:
    tree = Tree(str(root))
    board = find_board(tree, "jetson")
    assert not board.problems
    assert board.clock is not None
    assert board.sensor is not None
    truth = LiveBoard("orin-nano")
    truth.load = 1.0

    def reads(at_mhz: float) -> bool:
        truth.clocks[0].now = round(1e6 * at_mhz)
        assert board.sensor is not None
        return abs(board.sensor.read().power_w - truth.power_w()) < 0.1

    (root / "load_fraction").write_text("1", encoding="utf-8")
    assert wait_for(lambda: tree.read(CLASS + "/cur_freq") == "1020000000")
    assert wait_for(lambda: reads(1020.0))
    board.clock.pin(510.0)
    assert wait_for(lambda: board.clock is not None and board.clock.now_mhz() == 510.0)
    assert wait_for(lambda: reads(510.0))

    (root / "clamp_mhz").write_text("306", encoding="utf-8")
    assert wait_for(lambda: tree.read(CLASS + "/max_freq") == "306000000")
    (root / "clamp_mhz").unlink()
    assert wait_for(lambda: tree.read(CLASS + "/max_freq") == "510000000")

    tree.write(CLASS + "/max_freq", "nonsense")
    assert wait_for(lambda: tree.read(CLASS + "/max_freq") == "510000000")


def test_a_file_is_never_seen_half_written(root: Path) -> None:
    (root / "load_fraction").write_text("0.5", encoding="utf-8")
    place = Path(os.path.realpath(f"{root}/sys/class/hwmon/hwmon1/curr1_input"))
    for _ in range(5000):
        assert place.read_text(encoding="utf-8").strip().isdigit()


def test_work_is_held_back_at_a_lower_clock(root: Path) -> None:
    """By its state, not by what it gets done, which a busy machine holds back as well."""
    tree = Tree(str(root))
    board = find_board(tree, "jetson")
    assert board.clock is not None
    with subprocess.Popen([sys.executable, "-c", BUSY]) as worker:
        try:
            (root / "load").write_text(str(worker.pid), encoding="utf-8")
            board.clock.pin(1020.0)
            assert wait_for(lambda: tree.read(CLASS + "/cur_freq") == "1020000000" and state(worker.pid) != "T")
            for _ in range(200):
                assert state(worker.pid) != "T"
                time.sleep(0.001)
            board.clock.pin(306.0)
            assert wait_for(lambda: state(worker.pid) == "T")
            assert wait_for(lambda: state(worker.pid) != "T")
            # It is as busy as ever: the board does not mistake a stopped process for rest.
            assert wait_for(lambda: board.sensor is not None and board.sensor.read().power_w > 5.0, 60)
        finally:
            worker.kill()
