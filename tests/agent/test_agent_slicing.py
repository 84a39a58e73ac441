"""Slices of time at two neighbouring clocks: where they are used, what they write, and what remains after a failure."""

import statistics

import pytest
from tests.agent.test_agent_lease import Room
from tests.support.agent_trees import HIGH, LOW, texts
from tests.support.live.tree import LiveTree
from tests.support.made_board import MadeBoard
from tests.support.virtual_time import VirtualProgram, VirtualTime

from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board
from wattune_agent.errors import BadRequest, FileFailed, NotTaken
from wattune_agent.guarded import run_guarded
from wattune_agent.outcome import GuardRequest, in_words
from wattune_agent.slicing import gains_for, load_switch, measure_switch, save_switch
from wattune_agent.snapshot import Snapshot, snapshots

QUICK_S = [0.004, 0.001]


class SlicedBoard(MadeBoard):
    """A board with a quick clock and a sensor that averages over 0.1 s."""

    def __init__(self, **options):
        super().__init__(window_s=0.1, **options)
        self.slices = []
        self.switch_s = QUICK_S

    def describe(self):
        return {**super().describe(), "switch_s": self.switch_s}

    def slice(self, mhz):
        self._do("slice")
        self.slices.append(mhz)
        self.mhz = mhz


class Averaging:
    """Its power over time, by which the sensor of a ``SlicedBoard`` averages."""

    def __init__(self, board):
        self.board, self.powers_w = board, []
        self.time = VirtualTime(self.passes)
        board.read = self.read

    def passes(self, seconds):
        at = self.board.mhz or self.board.free_mhz
        self.powers_w += [at / 100] * round(seconds * 1000)

    def read(self):
        last_w = self.powers_w[-100:] or [5.0]
        at = self.board.mhz or self.board.free_mhz
        return {"power_w": sum(last_w) / len(last_w), "temperature_c": 50.0, "clock_mhz": at}

    def means_w(self, from_s):
        """The mean over each second after a time, every 10 ms."""
        ends = range(round(from_s * 1000) + 1000, len(self.powers_w), 10)
        return [sum(self.powers_w[end - 1000 : end]) / 1000 for end in ends]


def guarded(board, seconds, **limits):
    """The report of a program on that board, and its power over time."""
    truth = Averaging(board)
    limits = {"clock_mhz": 500.0, "window_s": 1.0, **limits}
    return run_guarded(board, VirtualProgram(truth.time, seconds), **limits), truth


# ------------------------------------------------------------------------------------------------ the writes of a slice


def test_a_slice_writes_the_two_limits_alone_and_restore_brings_back_what_was_found(tree, controller, tmp_path):
    before = texts(tmp_path)
    controller.pin(612.0)
    controller.slice(714.0)  # not verified yet: a pin
    snapshot = Snapshot.load(snapshots(tree)[0])
    slept_s, written = tree.now_s(), len(tree.written)
    for _ in range(20):
        controller.slice(612.0)
        assert (tree.read(LOW), tree.read(HIGH)) == ("612000000", "612000000")
        assert controller.check() == []
        controller.slice(714.0)
        assert (tree.read(LOW), tree.read(HIGH)) == ("714000000", "714000000")
        assert controller.check() == []
    assert set(tree.written[written:]) == {LOW, HIGH}
    assert len(tree.written) - written == 80
    assert tree.now_s() - slept_s < 1.0
    assert Snapshot.load(snapshots(tree)[0]) == snapshot
    controller.restore()
    assert texts(tmp_path) == before


def test_after_a_restore_nothing_is_verified(tree, controller, tmp_path):
    before = texts(tmp_path)
    controller.pin(612.0)
    controller.pin(714.0)
    controller.restore()
    controller.slice(612.0)  # a pin, with a snapshot of its own
    assert len(snapshots(tree)) == 1
    controller.restore()
    assert texts(tmp_path) == before


def test_another_writer_is_noticed_between_slices(tree, controller, tmp_path):
    controller.pin(612.0)
    controller.pin(714.0)
    controller.slice(612.0)
    (tmp_path / HIGH[1:]).write_text("1020000000\n")
    assert [event["kind"] for event in controller.check()] == ["another writer"]
    assert tree.read(HIGH) == "612000000"


def test_a_slice_that_is_not_taken_leaves_the_clock_where_it_was_or_lower(tree, controller):
    controller.pin(714.0)
    controller.pin(612.0)

    def refuse(path, text):
        if text == "714000000":
            raise FileFailed("refused")

    tree.before_write = refuse
    with pytest.raises((FileFailed, NotTaken)):
        controller.slice(714.0)
    assert int(tree.read(HIGH)) <= 612000000


# ----------------------------------------------------------------------------------------------------- where it is used


BOARD = {"window_s": 0.1, "period_s": 0.1, "lag_s": 0.0, "switch_s": QUICK_S}


@pytest.mark.parametrize(
    ("changed", "window_s", "is_on"),
    [
        ({}, 1.0, True),
        ({"window_s": 0.42, "period_s": 0.42}, 1.0, True),
        ({}, None, False),  # every reading counts
        ({"switch_s": None}, 1.0, False),  # never measured
        ({"switch_s": [0.05, 0.001]}, 1.0, False),
        ({"switch_s": [0.01, 0.02]}, 1.0, False),
        ({"window_s": 0.0}, 1.0, False),  # an unknown sensor
        ({"window_s": 1.0, "period_s": 1.0}, 1.0, False),
        ({"lag_s": 0.5}, 1.0, False),
        ({"lag_s": 0.5}, 10.0, True),
    ],
)
def test_slices_are_used_where_sensor_window_and_clock_allow_them(changed, window_s, is_on):
    assert (gains_for({**BOARD, **changed}, [306.0, 408.0, 510.0], window_s) is not None) == is_on


def test_clocks_that_are_close_to_each_other_are_not_sliced():
    assert gains_for(BOARD, [2000.0, 2015.0, 2030.0], 1.0) is None
    assert gains_for(BOARD, [500.0], 1.0) is None


def test_a_switch_is_measured_and_found_again(tmp_path):
    tree = LiveTree(tmp_path, "orin-nano")
    board = find_board(tree, "jetson")
    with Controller(board) as controller:
        assert controller.describe()["switch_s"] is None
        measured = measure_switch(controller, tree.now_s)
        assert measured is not None
        save_switch(tree, board.name, *measured)
        assert tuple(controller.describe()["switch_s"]) == measured
    for text in ("{", "[]", '{"x": 1}'.replace("x", board.name), 100_000 * "["):
        (tmp_path / "etc/wattune/switch.json").write_text(text)
        assert load_switch(tree, board.name) is None
    save_switch(tree, board.name, *measured)
    assert tuple(load_switch(tree, board.name)) == measured


# -------------------------------------------------------------------------------------------------------------- a guard


@pytest.mark.parametrize("cap_w", [2.5, 3.3, 4.8])
def test_the_mean_uses_the_cap_and_keeps_it(cap_w):
    board = SlicedBoard()
    report, truth = guarded(board, 90.0, cap_w=cap_w)
    assert (report.ended, report.above_cap_s) == ("finished", pytest.approx(0.0, abs=1.0))
    means_w = truth.means_w(20.0)
    assert max(means_w) <= 1.005 * cap_w
    assert min(means_w) >= 0.96 * cap_w
    assert len(board.slices) > 60
    lower = 100.0 * int(cap_w)
    assert set(board.slices[40:]) <= {lower, lower + 100.0}
    assert len([event for event in report.events if event["kind"] == "guard"]) <= 6
    assert sum(seconds for _, seconds in report.settings_s) == pytest.approx(90.0, abs=0.2)
    words = in_words(report, GuardRequest(["true"], 500.0, cap_w, None, None, 1.0), board.describe(), "measured")
    assert any(f" % at {lower + 100.0:g}" in line for line in words)
    assert board.restored == 1


@pytest.mark.parametrize("options", [{"slices": False}, {"window_s": None}])
def test_slices_can_be_switched_off(options):
    board = SlicedBoard()
    _, truth = guarded(board, 40.0, cap_w=3.5, **options)
    assert board.slices == []
    assert max(truth.means_w(10.0)) <= 3.5


def test_a_switch_that_fails_leaves_the_lower_clock_and_ends_the_slices():
    board = SlicedBoard()
    truth = Averaging(board)
    truth.time.later(30.0, lambda: board.fails.update(slice=NotTaken("heat")))
    report = run_guarded(board, VirtualProgram(truth.time, 60.0), clock_mhz=500.0, window_s=1.0, cap_w=3.5)
    assert report.ended == "finished"
    told = [event for event in report.events if event["kind"] == "slices off"]
    assert len(told) == 1
    assert 30.0 <= told[0]["time_s"] <= 31.5
    assert "heat" in told[0]["text"]
    means_w = truth.means_w(32.0)
    assert max(means_w) <= 1.005 * 3.5
    assert statistics.median(means_w) == pytest.approx(3.0)


def test_too_hot_costs_a_clock_with_slices_too():
    board = SlicedBoard()
    truth = Averaging(board)
    read = board.read
    board.read = lambda: {**read(), "temperature_c": 90.0 if truth.time.now_s() > 1030.0 else 50.0}
    run_guarded(board, VirtualProgram(truth.time, 45.0), clock_mhz=500.0, window_s=1.0, cap_w=3.5, max_temp_c=80.0)
    assert max(truth.means_w(41.5)) <= 2.0


# ------------------------------------------------------------------------------------------------------------- an agent


@pytest.fixture
def room():
    return Room(SlicedBoard())


def test_a_client_switches_its_pinned_clock(room):
    with pytest.raises(BadRequest, match="pinned"):
        room.keeper.slice(room.trainer, 300.0)
    room.keeper.pin(room.trainer, 300.0)
    for mhz in (400.0, 300.0, 400.0):
        assert room.keeper.slice(room.trainer, mhz) == {"mhz": mhz}
    assert room.board.slices == [400.0, 300.0, 400.0]
    assert room.board.pins == [300.0]
    with pytest.raises(BadRequest):
        room.keeper.slice(room.trainer, 450.0)


def test_a_slice_meets_the_agents_own_guard(room):
    room.keeper.pin(room.trainer, 300.0)
    room.keeper.guard(room.trainer, 2.5, None)
    room.pass_s(6.0)
    room.keeper.slice(room.trainer, 400.0)
    assert room.board.mhz == 100.0
