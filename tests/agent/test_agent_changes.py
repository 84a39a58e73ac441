"""A pinned clock that is changed: under a clamp, when the change fails, and how long it is waited for."""

import os

import pytest
from tests.support.agent_trees import HIGH, LOW, NOW, RAILGATE, MadeTree, board_in, cpu_tree, kinds, put, texts

from wattune_agent.controller import Controller
from wattune_agent.errors import FileFailed, Forbidden, NotTaken
from wattune_agent.file_knob import Limits

# ------------------------------------------------------------------------------------------------------- under a clamp


def test_a_clamp_that_lasts_uses_up_no_answers(tree, controller):
    controller.pin(918.0)
    for mhz in (714.0, 612.0, 510.0, 612.0, 714.0, 816.0, 510.0):
        tree.clamp_mhz = mhz
        assert kinds(controller.check()) == ["clamped"]
    tree.clamp_mhz = None
    assert kinds(controller.check()) == ["as pinned"]
    tree.write(HIGH, "1020000000")
    assert "it was written again" in controller.check()[0]["text"]
    assert tree.read(HIGH) == "918000000"


def test_a_minimum_that_stays_low_under_no_clamp_is_not_taken(tree):
    limits = Limits(tree, HIGH, [LOW])
    assert limits.pin(612000000) == {}
    tree.clamp_mhz = 510.0
    assert limits.pin(612000000) == {LOW: "612000000", HIGH: "612000000"}
    tree.clamp_mhz = None
    real = tree.read
    tree.read = lambda path: "306000000" if path == LOW else real(path)
    with pytest.raises(NotTaken):
        limits.pin(714000000)


# -------------------------------------------------------------------------------------------------- a change that fails


@pytest.mark.parametrize("error", [Forbidden("not allowed"), FileFailed("input/output error")], ids=["EACCES", "EIO"])
@pytest.mark.parametrize("path", [LOW, HIGH, RAILGATE])
@pytest.mark.parametrize("mhz", [408.0, 816.0])
def test_a_change_that_fails_leaves_the_board_pinned_and_no_higher(tree, controller, tmp_path, error, path, mhz):
    before = texts(tmp_path)
    controller.pin(612.0)
    tree.write(RAILGATE, "1")  # so that it is to be written again

    def fails(written, text):
        if os.path.basename(written) == os.path.basename(path):
            raise error

    tree.before_write = fails
    with pytest.raises(type(error), match=str(error)):
        controller.pin(mhz)
    assert int(tree.read(HIGH)) <= 612000000
    tree.before_write = lambda path, text: None
    controller.check()
    controller.check()
    assert tree.read(LOW) == tree.read(HIGH)
    assert int(tree.read(HIGH)) <= 612000000
    controller.pin(306.0)
    controller.restore()
    assert texts(tmp_path) == before


def test_where_the_one_before_is_refused_too_a_lower_one_is_held_and_told(tree, controller):
    controller.pin(612.0)

    def fails(path, text):
        if int(text) == 612000000 or (path == LOW and int(text) > 612000000):
            raise FileFailed("refused")

    tree.before_write = fails
    with pytest.raises(FileFailed, match="refused"):
        controller.pin(816.0)
    assert (tree.read(LOW), tree.read(HIGH)) == ("510000000", "510000000")
    (event,) = controller.check()
    assert event["kind"] == "kept"
    assert "510 MHz" in event["text"]
    tree.before_write = lambda path, text: None


def test_a_step_down_that_the_clock_does_not_follow_leaves_the_lower_limits(tree, controller, tmp_path):
    controller.pin(816.0)
    put(tmp_path, NOW, "816000000\n")
    tree.follows = False
    with pytest.raises(NotTaken, match="still at 816 MHz after 2 s"):
        controller.pin(612.0)
    assert (tree.read(LOW), tree.read(HIGH)) == ("612000000", "612000000")
    assert kinds(controller.check()) == ["kept"]
    controller.restore()
    assert tree.read(HIGH) == "1020000000"


# ------------------------------------------------------------------------------------------------------------- settling


def test_lowering_a_clock_that_idles_waits_for_nothing(tree, controller):
    controller.pin(1020.0)
    tree.follows = False
    tree.write(NOW, "714000000")
    begin_s = tree.time_s
    controller.pin(816.0)
    assert tree.time_s - begin_s < 0.6
    tree.write(NOW, "900000000")
    tree.actions.append((tree.time_s + 0.1, lambda: tree.write(NOW, "306000000")))
    begin_s = tree.time_s
    controller.pin(510.0)
    assert 0.1 <= tree.time_s - begin_s < 0.15  # there as soon as it is no longer above


def test_raising_a_clock_that_idles_waits_briefly(tree, controller):
    tree.follows = False
    controller.pin(612.0)
    assert 0.4 < tree.time_s < 0.6
    tree.actions.append((tree.time_s + 0.2, lambda: tree.write(NOW, "816000000")))
    begin_s = tree.time_s
    controller.pin(816.0)
    assert tree.time_s - begin_s < 0.3


# ----------------------------------------------------------------------------------------------------- cores that leave


def test_policies_that_go_offline_are_left_out_and_the_others_pinned(tmp_path):
    usual = {"scaling_available_frequencies": "400000 800000 1200000 1600000"}
    tree = MadeTree(cpu_tree(tmp_path, {0: usual, 4: usual}))
    cpu = "/sys/devices/system/cpu"
    put(tmp_path, cpu + "/cpu4/online", "1\n")
    board = board_in(tree, "cpu")
    with Controller(board) as controller:
        put(tmp_path, cpu + "/cpu4/online", "0\n")
        put(tmp_path, cpu + "/cpufreq/policy4/affected_cpus", "\n")
        tree.before_write = lambda path, text: (
            (_ for _ in ()).throw(FileFailed("offline")) if "policy4" in path else None
        )
        controller.pin(800.0)
        assert board.clock.pinned_mhz() == 800.0
        assert controller.check() == []
        tree.before_write = lambda path, text: None
        put(tmp_path, cpu + "/cpu4/online", "1\n")
        put(tmp_path, cpu + "/cpufreq/policy4/affected_cpus", "4\n")
        controller.pin(1200.0)  # it is back: pinned too, and kept before that
        assert tree.read(cpu + "/cpufreq/policy4/scaling_max_freq") == "1200000"
    assert tree.read(cpu + "/cpufreq/policy4/scaling_max_freq") == "1600000"
    assert tree.read(cpu + "/cpufreq/policy4/scaling_min_freq") == "400000"
