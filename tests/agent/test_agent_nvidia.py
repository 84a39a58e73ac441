"""An NVIDIA card behind the agent: its lock is a file of the tree, for snapshot, restore and watch alike."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.agent_socket import served
from tests.support.fake_nvml import (
    GB10,
    GPU_IS_LOST,
    HEAT,
    INVALID_ARGUMENT,
    NO_PERMISSION,
    NOT_SUPPORTED,
    POWER_CAP,
    UNKNOWN,
    VGPU,
    CardTree,
    FakeGpu,
    FakeLibrary,
    may_change,
)

from wattune.devices import open_device
from wattune.errors import DeviceUnavailable
from wattune.point import Knobs
from wattune_agent import nvml
from wattune_agent.__main__ import main
from wattune_agent.client import AgentClient
from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board
from wattune_agent.errors import BadRequest, Busy, FileFailed, Forbidden, NoReading, NotRestored, NotTaken
from wattune_agent.held_clock import ANSWERS
from wattune_agent.knobs import fits
from wattune_agent.lease import BoardLease
from wattune_agent.leftover import restore_left_behind
from wattune_agent.nvidia import card_names, find_card
from wattune_agent.snapshot import snapshots
from wattune_agent.tree import Tree, card_file

HIGHEST, LOWEST = 1440.0, 210.0


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    may_change(monkeypatch, tmp_path)


def disown(controller, tree):
    """Leave the card as a killed process leaves it."""
    controller._let_go()
    (path,) = map(Path, snapshots(tree))
    path.write_text(path.read_text().replace(f'"pid": {os.getpid()}', '"pid": 0'))


@pytest.fixture
def gpu():
    return FakeGpu()


@pytest.fixture
def tree(tmp_path, gpu):
    return CardTree(tmp_path, FakeLibrary(gpu))


@pytest.fixture
def controller(tree):
    with Controller(find_board(tree, "nvidia")) as controller:
        yield controller


def test_the_card_is_described(tree, gpu, controller):
    board = controller.describe()
    assert (board["name"], board["unit"], board["rail"]) == ("NVIDIA A30", "gpu", "energy counter")
    assert board["family"] == f"nvidia:{gpu.uuid}"
    assert (board["settings_mhz"][0], board["settings_mhz"][-1], len(board["settings_mhz"])) == (LOWEST, HIGHEST, 16)
    assert board["mode"] == {"driver": "550.54.15", "ECC": "on", "power limit": "165 W"}
    assert board["problems"] == []
    assert board["card"] == {
        "uuid": gpu.uuid,
        "names": {gpu.uuid: gpu.name},
        "capability": [8, 0],
        "memory_bytes": 20 * 2**30,
        "shares_memory": False,
        "highest_w": 165.0,
    }
    assert card_names(tree) == [f"nvidia:{gpu.uuid}"]
    reading = controller.read()
    assert reading["power_w"] == pytest.approx(gpu.power_of(1440), rel=0.1)
    assert (reading["temperature_c"], reading["clock_mhz"]) == (41.0, HIGHEST)


def test_a_card_is_found_by_its_name(tmp_path, gpu):
    tree = CardTree(tmp_path, FakeLibrary(gpu, FakeGpu(name="NVIDIA T400", uuid="GPU-second")))
    for name in ("nvidia:1", "nvidia:GPU-second"):
        assert find_board(tree, name).name == "NVIDIA T400"
    for name in ("nvidia:2", "nvidia:GPU-third", "nvidia:-1"):
        with pytest.raises(BadRequest, match="an index below 2"):
            find_board(tree, name)
    with pytest.raises(BadRequest, match="allowed: jetson, cpu, nvidia"):
        find_board(tree, "nvidias")


def test_a_lost_card_takes_no_other_card_away(tmp_path, gpu):
    lost = FakeGpu(uuid="GPU-lost", fails={"nvmlDeviceGetName": GPU_IS_LOST})
    tree = CardTree(tmp_path, FakeLibrary(lost, gpu))
    assert find_board(tree, "nvidia:1").name == gpu.name
    assert card_names(tree) == [f"nvidia:{gpu.uuid}"]
    with pytest.raises(FileFailed, match="lost"):
        find_board(tree, "nvidia:0")


def test_a_copy_of_a_board_has_no_card(tmp_path):
    assert card_names(Tree(str(tmp_path))) == []
    with pytest.raises(FileFailed, match="copy of a board"):
        Tree(str(tmp_path)).write(card_file("GPU-1", "locked_clock_mhz"), "none")


def test_a_pin_is_a_lock_and_ends_with_it(tree, gpu, controller):
    seen = []
    real, gpu.lock = gpu.lock, lambda *clocks: (seen.append(snapshots(tree)), real(*clocks))
    assert controller.pin(LOWEST) == {"mhz": LOWEST}
    assert len(seen[0]) == 1  # on the disk before the first change
    assert gpu.locked == (210, 210)
    assert controller.read()["clock_mhz"] == LOWEST
    controller.pin(HIGHEST)
    assert gpu.locked == (1440, 1440)
    controller.restore()
    assert gpu.locked is None
    assert snapshots(tree) == []


def test_a_clock_that_the_driver_rounds_is_the_locked_one(gpu, controller):
    controller.pin(LOWEST)
    gpu.lock(225, 225)
    time.sleep(0.05)
    assert controller.read()["clock_mhz"] == LOWEST
    assert controller.check() == []


def test_without_the_right_nothing_is_changed_and_nothing_stays(tmp_path, gpu):
    tree = CardTree(tmp_path, FakeLibrary(gpu, root=False))
    board = find_board(tree, "nvidia")
    with Controller(board) as controller:
        with pytest.raises(Forbidden, match="run the agent as root"):
            controller.pin(LOWEST)
        (tmp_path / "status").write_text("CapEff:\t00000000a80425fb\n")
        with pytest.raises(Forbidden, match="--cap-add SYS_ADMIN"):
            controller.claim()
    assert "CAP_SYS_ADMIN" in find_board(tree, "nvidia").problems[0]
    assert gpu.changes == []
    assert snapshots(tree) == []


def test_another_programs_release_is_answered_a_few_times(gpu, controller):
    controller.pin(LOWEST)
    kinds = []
    for _ in range(3 * (ANSWERS + 1)):
        gpu.unlock()
        time.sleep(0.03)
        kinds += [event["kind"] for event in controller.check()]
    assert kinds == ["another writer"] * ANSWERS + ["above the pin"]
    assert gpu.changes.count(("lock", (210, 210))) == 1 + ANSWERS


def test_a_power_limit_is_set_and_restored_as_a_clock_is(tree, gpu):
    gpu.limit_mw = 120_000
    with Controller(find_card(tree, "nvidia", "power_limit_w")) as controller:
        board = controller.describe()
        assert (board["knob"], board["settings_mhz"][0], board["settings_mhz"][-1]) == ("power_limit_w", 100.0, 165.0)
        assert "power limit" not in board["mode"]
        controller.pin(165.0)
        assert len(snapshots(tree)) == 1
        reading = controller.read()
        assert (reading["clock_mhz"], reading["notices"]) == (HIGHEST, [])
        gpu.limit_mw = 150_000
        assert [event["kind"] for event in controller.check()] == ["another writer"]
        assert gpu.limit_mw == 165_000
        tree.library.nvmlDeviceSetPowerManagementLimit = lambda handle, limit: 0
        with pytest.raises(NotTaken, match="written 100000, but read 165000"):
            controller.pin(100.0)
        del tree.library.nvmlDeviceSetPowerManagementLimit
    assert gpu.limit_mw == 120_000
    assert snapshots(tree) == []


def test_a_limit_that_a_killed_process_left_is_restored_before_the_clock_is_locked(tree, gpu):
    controller = Controller(find_card(tree, "nvidia", "power_limit_w"))
    controller.pin(100.0)
    disown(controller, tree)
    with Controller(find_board(tree, "nvidia")) as another:
        another.pin(LOWEST)
        assert (gpu.limit_mw, gpu.locked) == (165_000, (210, 210))
        assert [event["kind"] for event in another.check()] == ["left behind"]


def test_its_conditions_are_its_own(gpu, controller):
    gpu.reasons = POWER_CAP | HEAT
    gpu.temperature_c = 81
    reading = controller.read()
    assert (reading["temperature_c"], reading["throttled"], reading["notices"]) == (81.0, ["heat"], ["power limit"])
    controller.pin(LOWEST)
    assert controller.check() == []  # no limit of heat can be restored by mistake


def test_a_lost_card_gives_no_reading(gpu, controller):
    gpu.fails["nvmlDeviceGetTotalEnergyConsumption"] = GPU_IS_LOST
    with pytest.raises(NoReading, match="lost"):
        controller.read()
    gpu.fails["nvmlDeviceGetTotalEnergyConsumption"] = NOT_SUPPORTED
    with pytest.raises(NoReading, match="is gone"):
        controller.read()


@pytest.mark.parametrize(
    ("changes", "rail", "window_s"),
    [
        ({"energy": False}, "reported power", 0.0),  # GA100
        ({"energy": False, "capability": (8, 6)}, "averaged power", 1.0),
    ],
)
def test_a_card_without_a_counter_reports_its_power(tmp_path, changes, rail, window_s):
    gpu = FakeGpu(**changes)
    with Controller(find_board(CardTree(tmp_path, FakeLibrary(gpu)), "nvidia")) as controller:
        board = controller.describe()
        assert (board["rail"], board["window_s"]) == (rail, window_s)
        assert controller.read()["power_w"] == pytest.approx(gpu.power_of(1440))


def test_a_gb10_has_a_grid_of_clocks_and_the_machines_memory(tmp_path):
    gpu = FakeGpu(**GB10)
    tree = CardTree(tmp_path, FakeLibrary(gpu))
    board = find_board(tree, "nvidia")
    assert (board.clock.settings_mhz[0], board.clock.settings_mhz[-1]) == (751.0, 3003.0)
    assert "never tried" in board.problems[-1]
    facts = board.facts()
    assert (facts["memory_bytes"], facts["shares_memory"], facts["highest_w"]) == (None, True, None)
    assert board.mode() == {"driver": "550.54.15"}
    gpu.virtual = VGPU
    assert find_board(tree, "nvidia").clock is None
    gpu.virtual, gpu.energy, gpu.usage = 0, False, False
    assert find_board(tree, "nvidia").sensor is None


@pytest.mark.parametrize("code", [NO_PERMISSION, INVALID_ARGUMENT, UNKNOWN])
def test_what_a_card_does_not_tell_is_left_out(tmp_path, code):
    optional = (
        "nvmlDeviceGetEccMode",
        "nvmlDeviceGetPowerManagementLimit",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetCurrentClocksThrottleReasons",
    )
    gpu = FakeGpu(fails=dict.fromkeys(optional, code))
    library = FakeLibrary(gpu, lacks={"nvmlDeviceGetVirtualizationMode", "nvmlSystemGetDriverVersion"})
    with Controller(find_board(CardTree(tmp_path, library), "nvidia")) as controller:
        board, reading = controller.describe(), controller.read()
    assert (board["mode"], board["card"]["memory_bytes"], board["problems"]) == ({}, None, [])
    assert (reading["temperature_c"], reading["throttled"]) == (None, [])
    assert not board["card"]["shares_memory"]


# -------------------------------------------------------------------------------------------------- who controls it

KILLED = """
import os, sys
from tests.agent.test_agent_nvidia import LOWEST, nvml
from tests.support.fake_nvml import CardTree, FakeGpu, FakeLibrary
from wattune_agent.controller import Controller
from wattune_agent.leftover import restore_left_behind
from wattune_agent.discovery import find_board

nvml.STATUS = "/nowhere"
gpu = FakeGpu()
library = FakeLibrary(gpu)
if os.fork() == 0:
    Controller(find_board(CardTree(sys.argv[1], library), "nvidia")).pin(LOWEST)
    os._exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
(text,) = restore_left_behind(CardTree(sys.argv[1], library))
assert gpu.changes == [("reset", None)], gpu.changes
assert restore_left_behind(CardTree(sys.argv[1], library)) == []
print(text)
"""


def test_what_a_killed_process_locked_is_released_later(tmp_path):
    (tmp_path / "sys").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.startswith("the nvidia:GPU-"), done.stderr
    assert "clock is as it was before process" in done.stdout


def test_a_card_that_cannot_be_restored_keeps_its_snapshot(tree, gpu, controller):
    controller.pin(LOWEST)
    gpu.fails["nvmlDeviceResetGpuLockedClocks"] = GPU_IS_LOST
    with pytest.raises(NotRestored, match="GPU is lost"):
        controller.restore()
    assert len(snapshots(tree)) == 1
    gpu.fails.clear()
    controller.restore()
    assert (gpu.locked, snapshots(tree)) == (None, [])


@pytest.mark.parametrize("code", [NO_PERMISSION, GPU_IS_LOST])
def test_nor_is_it_taken_for_restored_by_a_process_that_locked_nothing(tree, gpu, controller, tmp_path, code):
    controller.pin(LOWEST)
    disown(controller, tree)
    gpu.fails["nvmlDeviceResetGpuLockedClocks"] = code
    another = CardTree(tmp_path, tree.library)
    for _ in range(2):
        with pytest.raises(NotRestored, match="locked clock of NVIDIA A30"):
            restore_left_behind(another)
        assert len(snapshots(another)) == 1
    gpu.fails.clear()
    assert len(restore_left_behind(another)) == 1
    assert (gpu.locked, snapshots(another)) == (None, [])


def test_a_snapshot_restores_nothing_but_an_unlocked_clock(gpu):
    path = card_file(gpu.uuid, "locked_clock_mhz")
    assert fits(path, "none")
    assert not any(fits(path, text) for text in ("210", "0", "none\n", "x"))
    assert not fits("/nvml/../locked_clock_mhz", "none")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to somebody else")
def test_a_limit_in_a_file_of_another_user_is_never_set(tree, gpu):
    """Root would otherwise set any limit of the card for anyone who writes a file."""
    path = card_file(gpu.uuid, "power_limit_mw")
    assert fits(path, "165000")
    assert not any(fits(path, text) for text in ("none", "-1", "99999999999", ""))
    controller = Controller(find_card(tree, "nvidia", "power_limit_w"))
    controller.pin(100.0)
    disown(controller, tree)
    (left,) = snapshots(tree)
    os.chown(left, 65534, 65534)
    changes = list(gpu.changes)
    (said,) = restore_left_behind(tree)
    assert "is not obeyed" in said
    assert gpu.changes == changes


def test_both_knobs_of_a_card_have_one_controller(tree, controller):
    controller.pin(LOWEST)
    with Controller(find_card(tree, "nvidia", "power_limit_w")) as another:
        with pytest.raises(Busy, match="another controller has the nvidia:GPU"):
            another.pin(100.0)
        controller.restore()
        another.pin(100.0)


# ---------------------------------------------------------------------------------------------------- over the socket


@contextmanager
def serving(tree, path):
    controller = Controller(find_board(tree, "nvidia"))
    try:
        with served(path, BoardLease(controller)):
            yield
    finally:
        controller.close()


@pytest.mark.slow
def test_an_ordinary_user_trains_on_the_agents_card(tree, gpu, tmp_path):
    with serving(tree, tmp_path / "agent.sock"):
        device = open_device(f"agent:{tmp_path / 'agent.sock'}")
        try:
            assert (device.name, device.trains_on, device.shares_memory) == ("NVIDIA A30", "gpu", False)
            assert device.data_types == {"fp32", "tf32", "fp16", "bf16"}
            assert device.memory_bytes == 20 * 2**30
            assert device.mode == "driver 550.54.15, ECC on, power limit 165 W"
            with device.at(Knobs(clock_mhz=LOWEST)):
                assert gpu.locked == (210, 210)
                assert device.power_w() > 0
            assert gpu.locked is None
            gpu.reasons = POWER_CAP
            time.sleep(1.1)
            assert device.conditions().notices == ("power limit",)
        finally:
            device.close()


def test_training_has_to_run_on_the_agents_card(tmp_path, gpu, monkeypatch):
    tree = CardTree(tmp_path, FakeLibrary(gpu, FakeGpu(name="NVIDIA T400", uuid="GPU-second")))
    with serving(tree, tmp_path / "agent.sock"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
        with pytest.raises(DeviceUnavailable, match="PCI_BUS_ID"):
            open_device(f"agent:{tmp_path / 'agent.sock'}")
        monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        open_device(f"agent:{tmp_path / 'agent.sock'}").close()


@pytest.mark.slow
def test_the_agent_holds_a_card_under_a_cap_and_releases_it_with_its_client(tree, gpu, tmp_path):
    with serving(tree, tmp_path / "agent.sock"):
        client = AgentClient(str(tmp_path / "agent.sock"))
        client.guard(100.0, None)
        end_s = time.monotonic() + 20
        while (gpu.locked is None or gpu.power_of(gpu.locked[1]) > 100.0) and time.monotonic() < end_s:
            time.sleep(0.05)
        assert gpu.power_of(gpu.locked[1]) <= 100.0
        client.close()
        while gpu.locked is not None and time.monotonic() < end_s:
            time.sleep(0.05)
        assert gpu.locked is None


@pytest.mark.slow
def test_the_command_guards_and_lists_a_card(gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(nvml, "_load", lambda: FakeLibrary(gpu))
    monkeypatch.setattr("wattune_agent.folders.SYSTEM_FOLDER", str(tmp_path / "state"))
    assert main(["devices"]) == 0
    assert f"nvidia:{gpu.uuid}  NVIDIA A30" in capsys.readouterr().out
    assert main(["guard", "--device", "nvidia:0", "--clock", "210MHz", "--cap", "160W", "--", "sleep", "1"]) == 0
    assert gpu.changes == [("lock", (210, 210)), ("reset", None)]
    assert main(["serve", "--device", "nvidia:7", "--socket", str(tmp_path / "s")]) == 2
    assert main(["serve", "--device", "fan", "--socket", str(tmp_path / "s")]) == 2
    assert "allowed: jetson, cpu, nvidia" in capsys.readouterr().err
