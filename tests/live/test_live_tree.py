"""The live board behind the agent's Tree: files, time, and everything that can go wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.live.power import MODELS
from tests.support.live.tree import ANSWERS, ERRORS, FAULTS, LiveTree, disk_full

from wattune_agent.conditions import conditions
from wattune_agent.discovery import find_board
from wattune_agent.errors import AgentError, FileFailed, Forbidden
from wattune_agent.tree import Tree

CLASS = "/sys/class/devfreq/17000000.gpu"
AGENT_FAMILY = {"orin-nano": "jetson", "nano": "jetson", "cpu-laptop": "cpu"}


@pytest.fixture(params=sorted(MODELS))
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> LiveTree:
    return LiveTree(tmp_path / "board", request.param)


@pytest.fixture
def orin(tmp_path: Path) -> LiveTree:
    return LiveTree(tmp_path / "board", "orin-nano")


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


def test_what_can_be_written_is_on_the_disk_as_well(tree: LiveTree) -> None:
    plain = Tree(tree.root)
    path = tree.board.clocks[0].high_path
    tree.write(path, str(tree.board.clocks[0].listed[2]))
    assert plain.read(path) == tree.read(path) == tree.board.text(path)


def test_time_passes_by_sleeping_and_a_little_by_reading(orin: LiveTree) -> None:
    begin_s = orin.now_s()
    for _ in range(10):
        orin.read(CLASS + "/cur_freq")
    assert orin.now_s() - begin_s == pytest.approx(1e-3)
    orin.sleep(3600.0)
    assert orin.now_s() - begin_s == pytest.approx(3600.001)


@pytest.mark.parametrize("kind", sorted(ERRORS))
def test_an_error_is_the_kernels(orin: LiveTree, kind: str) -> None:
    fault = orin.fault("*/max_freq", kind)
    with pytest.raises(Forbidden if kind == "forbidden" else FileFailed, match="max_freq"):
        orin.write(CLASS + "/max_freq", "612000000")
    assert fault.count == 1
    if fault.on == "both":
        with pytest.raises(AgentError):
            orin.read(CLASS + "/max_freq")
    else:
        assert orin.read(CLASS + "/max_freq") == "1020000000"
    assert orin.exists(CLASS + "/max_freq") is (kind != "vanished")
    assert orin.writable(CLASS + "/max_freq") is (kind != "forbidden")
    assert orin.read(CLASS + "/min_freq") == "306000000"


@pytest.mark.parametrize("kind", sorted(ANSWERS))
def test_another_answer_lasts_as_long_as_it_is_told_to(orin: LiveTree, kind: str) -> None:
    orin.fault("*/curr1_input", kind, from_s=1.0, until_s=2.0)
    before = orin.read("/sys/class/hwmon/hwmon1/curr1_input")
    orin.sleep(1.0)
    assert orin.read("/sys/class/hwmon/hwmon1/curr1_input") == ANSWERS[kind] != before
    orin.sleep(1.0)
    assert orin.read("/sys/class/hwmon/hwmon1/curr1_input") == before


def test_a_stuck_sensor_stays_at_the_value_of_that_moment(orin: LiveTree) -> None:
    orin.fault("*/curr1_input", "stuck", from_s=1.0)
    orin.sleep(1.0)
    kept = orin.read("/sys/class/hwmon/hwmon1/curr1_input")
    orin.board.load = 1.0
    orin.sleep(5.0)
    assert orin.read("/sys/class/hwmon/hwmon1/curr1_input") == kept
    assert orin.read("/sys/class/hwmon/hwmon1/curr2_input") != kept


def test_an_ignored_write_changes_nothing(orin: LiveTree) -> None:
    orin.fault("*/max_freq", "ignored")
    orin.write(CLASS + "/max_freq", "612000000")
    assert orin.read(CLASS + "/max_freq") == "1020000000"
    assert not orin.writes


def test_other_things_happen_at_their_time(orin: LiveTree) -> None:
    orin.later(2.0, lambda: orin.board.clamp(510.0))
    orin.later(1.0, lambda: orin.rewrite(CLASS + "/max_freq", "918000000"))
    orin.board.load = 1.0
    orin.sleep(1.5)
    assert (orin.read(CLASS + "/max_freq"), orin.read(CLASS + "/cur_freq")) == ("918000000", "918000000")
    assert not conditions(orin).throttled
    orin.sleep(1.0)
    assert (orin.read(CLASS + "/max_freq"), orin.read(CLASS + "/cur_freq")) == ("510000000", "510000000")
    assert conditions(orin).throttled
    assert conditions(orin).temperature_c == pytest.approx(orin.board.temperature_c, abs=0.1)
    assert conditions(orin).over_current == 0


def test_something_can_come_between_before_each_write(orin: LiveTree) -> None:
    class KilledHere(BaseException):
        pass

    def kill(path: str, text: str) -> None:
        raise KilledHere(path)

    orin.before_write = kill
    with pytest.raises(KilledHere):
        orin.write(CLASS + "/max_freq", "612000000")
    assert orin.read(CLASS + "/max_freq") == "1020000000"


def test_a_full_disk_is_one_for_root_as_well(tmp_path: Path) -> None:
    with disk_full(), pytest.raises(OSError, match="too large"):
        (tmp_path / "file").write_text("x", encoding="utf-8")
    (tmp_path / "file").write_text("x", encoding="utf-8")


def test_there_are_many_kinds_of_faults() -> None:
    assert len(set(FAULTS)) == len(FAULTS) >= 13
