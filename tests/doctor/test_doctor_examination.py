"""Examination of every recorded board: each fault is found, with a fix."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.support.agent_socket import serving
from tests.support.board_records import materialise
from tests.support.live.tree import LiveTree

from wattune.devices import Conditions
from wattune.doctor import board_checks, default_device, examine
from wattune.doctor.board_checks import (
    check_agent,
    check_conditions,
    check_holder,
    check_left_behind,
    check_permissions,
    check_pinned,
    check_torch,
)
from wattune.doctor.interpreter import Interpreter
from wattune.errors import InputError
from wattune_agent import client
from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board
from wattune_agent.errors import Full
from wattune_agent.server import MOST
from wattune_agent.tree import Tree

RECORDS = sorted((Path(__file__).parent.parent / "boards").glob("*.json"))


@pytest.fixture
def live(tmp_path):
    return LiveTree(tmp_path / "live")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_every_recorded_board(tmp_path, path):
    root = str(tmp_path / "board")
    record = json.loads(path.read_text())
    materialise(record, root)
    family = default_device(root)
    assert family == record["expect"]["family"]
    examination = examine(f"{family}?root={root}")
    states = {finding.name: finding.state for finding in examination.findings}
    assert {"permissions", "holder", "left behind", "agent"} <= set(states)
    if record["expect"]["rail"] and "watts" not in record["expect"]:  # a counter does not advance in a folder
        assert {"rails", "clock", "mode", "conditions"} <= set(states)
        assert not examination.failed
    assert not {"sensor", "torch"} & set(states), "nothing can be measured in a folder"


def test_a_missing_board_is_reported_in_one_line(tmp_path):
    (tmp_path / "sys").mkdir()
    with pytest.raises(InputError, match="no board that wattune can read"):
        default_device(str(tmp_path))
    examination = examine(f"jetson?root={tmp_path}")
    assert [finding.name for finding in examination.failed] == ["device"]
    # With the options that open such a board, too.
    examination = examine(f"jetson?root={tmp_path}&knobs=gpu&meter=external:echo 5")
    assert [finding.name for finding in examination.failed] == ["device"]


@pytest.mark.parametrize("spec", ["sim:jetson-nano", "sim:jetson-nano:cpu"])
def test_a_simulated_device_has_nothing_to_examine(spec):
    with pytest.raises(InputError, match="not a physical one"):
        examine(spec)


# ------------------------------------------------------------------------------------------------------------ files


def test_files_without_write_permission(live, monkeypatch):
    board = find_board(live, "jetson")
    assert check_permissions(board).state == "ok"
    live.fault("*max_freq", "forbidden", on="write")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    finding = check_permissions(board)
    assert finding.state == "fail"
    assert "max_freq" in finding.text
    assert "run the agent as root" in finding.fix
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert "outside the container" in check_permissions(board).fix
    assert "-v /run/wattune:/run/wattune" in check_permissions(board).fix


def test_a_board_controlled_by_another_process(live):
    board = find_board(live, "jetson")
    assert check_holder(board).state == "ok"
    with Controller(find_board(live, "jetson")) as controller:
        controller.pin(612.0)
        finding = check_holder(board)
        assert finding.state == "warn"
        assert str(os.getpid()) in finding.text
        assert check_pinned(board)[0].state == "warn"
    assert check_holder(board).state == "ok"
    assert check_pinned(board) == []


def test_what_only_root_can_see_is_not_said_to_be_well(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert check_left_behind(Tree()).text == "only root can tell"


def test_a_killed_process_leaves_a_snapshot(live):
    assert check_left_behind(Tree(live.root)).state == "ok"
    code = (
        "import os, signal, sys\n"
        "from wattune_agent.controller import Controller\n"
        "from wattune_agent.discovery import find_board\n"
        "from wattune_agent.tree import Tree\n"
        "Controller(find_board(Tree(sys.argv[1]), 'jetson')).pin(306.0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # A folder does not follow its limits: the pin is the lowest clock, which the clock shows already.
    subprocess.run([sys.executable, "-c", code, live.root])
    finding = check_left_behind(Tree(live.root))
    assert finding.state == "fail"
    assert finding.fix == "wattune restore"


def test_a_truncated_snapshot_is_named(live):
    folder = Path(live.root + "/var/lib/wattune")
    folder.mkdir(parents=True)
    (folder / "board-jetson.json").write_text('{"record": "snap')
    finding = check_left_behind(Tree(live.root))
    assert finding.state == "fail"
    assert "board-jetson.json" in finding.text


def test_a_running_agent(tmp_path, live, monkeypatch):
    (tmp_path / "sys").mkdir()
    tree = Tree(str(tmp_path))
    assert "not running" in check_agent(tree).text
    path = tmp_path / "run/wattune/agent.sock"
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert (check_agent(tree).state, check_agent(tree).fix) == ("warn", "sudo systemctl start wattune-agent")
    path.unlink()
    with serving(live.root, path):
        assert "--device agent" in check_agent(tree).text
        monkeypatch.setitem(board_checks.STATED, "read", ["a field of a later version"])
        assert "restart the agent" in check_agent(tree).fix
        with ExitStack() as held:
            with suppress(Full):
                for _ in range(MOST):
                    held.enter_context(client.AgentClient(str(path)))
            assert "connections are open already" in check_agent(tree).text
            assert "end some of the processes" in check_agent(tree).fix
        monkeypatch.setattr(client, "SERVED", (3,))
        assert check_agent(tree).state == "fail"
        assert "speaks version 2" in check_agent(tree).text


# ----------------------------------------------------------------------------------------------- device


class FakeDevice:
    def __init__(self, conditions):
        self.conditions = lambda: conditions


@pytest.mark.parametrize(
    ("conditions", "state", "words"),
    [
        (Conditions(), "ok", "reports no temperature"),
        (Conditions(temperature_c=51.0, over_current=0), "ok", "51.0"),
        (Conditions(temperature_c=91.0), "warn", "91.0"),
        (Conditions(temperature_c=60.0, over_current=3), "warn", "3 over-current"),
        (Conditions(temperature_c=60.0, notices=("power limit",)), "ok", "power limit"),
        (Conditions(temperature_c=97.0, throttled=("gpu-throttle-alert",)), "fail", "gpu-throttle-alert"),
    ],
)
def test_temperature_throttling_and_over_current(conditions, state, words):
    finding = check_conditions(FakeDevice(conditions))
    assert finding.state == state
    assert words in finding.text
    assert bool(finding.fix) == (state != "ok")


def test_one_over_current_event_is_a_note(tmp_path):
    # An AGX Thor counts one whenever it starts.
    finding = check_conditions(FakeDevice(Conditions(temperature_c=60.0, over_current=1)))
    assert finding.state == "ok"
    assert "1 over-current event since" in finding.text
    assert "may be too weak" in finding.fix


@pytest.mark.parametrize(("zone_c", "state"), [(80.0, "ok"), (86.0, "warn")])
def test_a_hot_board_is_warned_of(zone_c, state):
    assert check_conditions(FakeDevice(Conditions(temperature_c=zone_c))).state == state


# ---------------------------------------------------------------------------------------------------------------- torch


@pytest.mark.parametrize(
    ("torch", "needs_gpu", "state", "words"),
    [
        (("2.5.0", "12.6", "Orin"), True, "ok", "Orin"),
        (("2.5.0", None, None), False, "ok", "on the CPU"),
        (("2.5.0", None, None), True, "fail", "CPU build"),
        (("2.5.0", "12.6", None), True, "fail", "finds no GPU"),
        ((), False, "fail", "cannot be loaded"),
    ],
)
def test_check_of_torch(torch, needs_gpu, state, words):
    finding = check_torch(Interpreter("python", "3.11.2", *torch, failure="the driver is too old"), needs_gpu=needs_gpu)
    assert finding.state == state
    assert words in finding.text
    assert bool(finding.fix) == (state == "fail")
    if words in ("finds no GPU", "cannot be loaded"):
        assert "the driver is too old" in finding.text
