"""Suspension by the agent: only with an alarm that is armed, only for the client that holds the board."""

import signal
import subprocess
import sys
from contextlib import closing, contextmanager

import pytest
from tests.agent.test_agent_lease import Room
from tests.support.agent_socket import ENVIRONMENT
from tests.support.live_board import ROOT, live, wait_for
from tests.support.sleeping_board import SleepingTree, sleeping_tree

from wattune.cap import SensorLimit
from wattune.cap_trace import CalledCap
from wattune.devices import open_device
from wattune.errors import InputError
from wattune.point import Knobs
from wattune.power import cap_follower
from wattune.power.cap_follower import CapFollower, UnderCap
from wattune.power.capped_run import CappedRun
from wattune_agent.client import AgentClient
from wattune_agent.errors import BadRequest, Busy, FileFailed
from wattune_agent.lease import BLIND_S, LEASE_S
from wattune_agent.suspend import ALARM, LEAST_S, MOST_S, STATE, can_suspend, suspend
from wattune_agent.tree import Tree


def test_the_board_sleeps_until_its_alarm_and_the_alarm_is_cleared(tmp_path):
    tree = SleepingTree(sleeping_tree(tmp_path))
    assert can_suspend(tree)
    assert suspend(tree, 900.0) == {"asleep_s": 900.0}
    assert tree.states == ["mem"]
    assert tree.read(ALARM) == ""
    assert suspend(tree, 60.0) == {"asleep_s": 60.0}


def test_a_board_that_is_woken_earlier_says_so(tmp_path):
    tree = SleepingTree(sleeping_tree(tmp_path, states="freeze"), wakes_s=30.0)
    assert suspend(tree, 900.0) == {"asleep_s": 30.0}
    assert tree.states == ["freeze"]


def test_another_alarm_is_replaced(tmp_path):
    tree = SleepingTree(sleeping_tree(tmp_path))
    tree.write(ALARM, "+5000")
    assert suspend(tree, 900.0) == {"asleep_s": 900.0}


@pytest.mark.parametrize("seconds", [LEAST_S - 1, MOST_S + 1, float("nan")])
def test_bounds(tmp_path, seconds):
    tree = SleepingTree(sleeping_tree(tmp_path))
    with pytest.raises(BadRequest, match="allowed: 60 to 86400 s"):
        suspend(tree, seconds)
    assert tree.states == []


def test_no_suspension_without_an_armed_alarm(tmp_path):
    tree = SleepingTree(sleeping_tree(tmp_path), arms=False)
    with pytest.raises(FileFailed, match="did not arm, so the board would not wake"):
        suspend(tree, 900.0)
    # Plain files take any text, and no kernel arms anything.
    with pytest.raises(FileFailed, match="did not arm"):
        suspend(Tree(str(tmp_path)), 900.0)
    assert tree.states == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"states": "disk"}, "offers neither mem nor freeze"), ({"wakeup": "disabled"}, "cannot wake this board")],
)
def test_boards_that_cannot_be_suspended(tmp_path, changes, message):
    tree = SleepingTree(sleeping_tree(tmp_path, **changes))
    assert not can_suspend(tree)
    with pytest.raises(FileFailed, match=message):
        suspend(tree, 900.0)


def test_files_that_are_missing_or_not_ours(tmp_path):
    assert not can_suspend(Tree(str(tmp_path)))
    tree = SleepingTree(sleeping_tree(tmp_path))
    (tmp_path / ALARM[1:]).unlink()
    assert not can_suspend(tree)
    with pytest.raises(FileFailed, match="cannot wake this board"):
        suspend(tree, 900.0)


def test_a_driver_that_refuses_leaves_no_alarm(tmp_path):
    tree = SleepingTree(sleeping_tree(tmp_path), fails=True)
    with pytest.raises(FileFailed, match=STATE):
        suspend(tree, 900.0)
    assert tree.read(ALARM) == ""


# ------------------------------------------------------------------------------------------------------------ the lease


@pytest.fixture
def room():
    made = Room()
    made.slept = []

    def fall_asleep(seconds):
        made.slept.append(seconds)
        made.board.now_s += 30.0  # until all drivers have stopped and started again
        return {"asleep_s": seconds}

    made.board.suspend = fall_asleep
    return made


def test_only_the_holder_suspends_the_board(room):
    with pytest.raises(BadRequest, match="pin the board before"):
        room.keeper.suspend(room.trainer, 900.0)
    room.keeper.pin(room.trainer, 300.0)
    with pytest.raises(Busy, match="trainer holds the board"):
        room.keeper.suspend(room.other, 900.0)
    assert room.slept == []
    assert room.keeper.suspend(room.trainer, 900.0) == {"asleep_s": 900.0}


def test_a_suspension_counts_neither_as_silence_nor_as_a_lost_sensor(room):
    assert min(LEASE_S, 30.0) > BLIND_S
    room.keeper.guard(room.trainer, 9.0, None)
    room.keeper.pin(room.trainer, 300.0)
    room.keeper.suspend(room.trainer, 900.0)
    room.pass_s(1.0)
    assert room.board.mhz == 300.0
    assert room.kinds() == []


def test_a_refused_suspension_keeps_the_lease(room):
    def refuse(seconds):
        raise FileFailed("no")

    room.board.suspend = refuse
    room.keeper.pin(room.trainer, 300.0)
    with pytest.raises(FileFailed):
        room.keeper.suspend(room.trainer, 900.0)
    assert room.keeper.holds(room.trainer)


# ----------------------------------------------------------------------------------------------------------- the socket


@contextmanager
def sleeping_agent(folder):
    """A live board that can be suspended, and the socket of the agent that holds it."""
    socket = folder / "agent.sock"
    command = [sys.executable, "-m", "tests.support.sleeping_board", str(folder / "board"), str(socket)]
    with live(folder / "board") as board:
        with subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT) as agent:
            try:
                assert wait_for(socket.exists)
                yield board, socket
            finally:
                agent.send_signal(signal.SIGTERM)
                agent.wait(10)


@pytest.mark.slow
def test_a_pause_is_slept_through_on_real_time(tmp_path, monkeypatch):
    monkeypatch.setattr(cap_follower, "AWAKE_S", 1.0)
    cap = CalledCap(cap_w=lambda time_s: 50.0 if time_s < 1 or time_s >= 2000 else 0.0)
    with sleeping_agent(tmp_path) as (_, socket), closing(open_device(f"agent:{socket}")) as device:
        limit = SensorLimit(window_s=device.sensor.window_s)
        run = CappedRun(device, limit, device.safest)
        lowest = Knobs(clock_mhz=306.0)
        follower = CapFollower(run, cap, lambda watts: UnderCap(limit, lowest if watts else None), suspends=True)
        with run:
            follower.begin(None, 0.0)
            run.start()
            with follower:
                while run.meter.elapsed_s < 2000:
                    follower.hold(0.01)
                    device.wait(0.02)
            assert run.meter.figures().asleep_s == 2700
            assert run.monitor.events == ()  # a reading that is the same afterwards is no stuck sensor
        assert 2000 < follower.paused_s < 2760
        assert [one.pause for one in follower.intervals] == [None, "the cap is 0 W", "asleep: the cap is 0 W", None]


@pytest.mark.slow
def test_an_agent_suspends_its_board(tmp_path):
    with sleeping_agent(tmp_path) as (board, socket):
        with AgentClient(str(socket)) as client:
            assert client.describe()["can_suspend"] is True
            with pytest.raises(BadRequest, match="pin the board before"):
                client.suspend(900.0)
            client.pin(612.0)
            assert client.suspend(900.0) == {"asleep_s": 900.0}
            with pytest.raises(BadRequest, match="allowed: 60 to 86400 s"):
                client.suspend(5.0)
            assert board.is_at(612.0)
        device = open_device(f"agent:{socket}")
        with device.at(Knobs(clock_mhz=306.0)):
            before_s = device.now_s()
            assert device.can_suspend
            assert device.suspend(900.0) == (900.0, None)
            assert device.now_s() - before_s >= 900
            assert device.power_w() > 0
            with pytest.raises(InputError, match="allowed: 60 to 86400 s"):
                device.suspend(1.0)
        device.close()
