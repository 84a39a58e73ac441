"""The live board behind the agent's Tree."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.live.power import MODELS
from tests.support.live.tree import LiveTree

from wattune_agent.discovery import find_board

AGENT_FAMILY = {"orin-nano": "jetson", "nano": "jetson", "cpu-laptop": "cpu"}


@pytest.fixture(params=sorted(MODELS))
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> LiveTree:
    return LiveTree(tmp_path / "board", request.param)


def test_the_agent_finds_pins_and_reads_it(tree: LiveTree) -> None:
    board = find_board(tree, AGENT_FAMILY[tree.board.family])
    assert not board.problems
    assert board.clock is not None
    assert board.sensor is not None
    before = tree.state()
    saved = {path: tree.read(path) for path in board.clock.files()}
    tree.board.load = 1.0
    peaks_w = []
    for mhz in board.clock.settings_mhz[::3]:
        board.clock.pin(mhz)
        assert board.clock.pinned_mhz() == mhz
        tree.sleep(1.0)
        assert board.clock.now_mhz() == pytest.approx(mhz)
        board.sensor.read()
        tree.sleep(0.5)
        reading = board.sensor.read()
        assert reading.power_w == pytest.approx(tree.board.power_w(), rel=0.02, abs=0.05)
        peaks_w.append(reading.power_w)
    assert peaks_w == sorted(peaks_w)
    board.clock.restore(saved)
    assert tree.state() == before
    assert not tree.is_real
