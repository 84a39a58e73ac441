"""Boards of metal as devices: on live trees in this process and its time, as files, and over an agent."""

import json
import threading
from pathlib import Path

import pytest
from tests.support.agent_socket import serving
from tests.support.board_records import RECORDS, unpack, without_sensor
from tests.support.device_examples import make_work
from tests.support.live.tree import LiveTree
from tests.support.live_board import live, wait_for
from tests.support.live_devices import virtual

from wattune.cap import SensorLimit
from wattune.devices import known_devices, open_device
from wattune.devices.agent import CHECK_S, usable
from wattune.devices.spec_options import with_options
from wattune.errors import DeviceError, DeviceUnavailable, InputError, SensorError
from wattune.point import Knobs
from wattune_agent.readings import STUCK_READINGS, STUCK_S, Stuck
from wattune_agent.tree import Tree

GPU = "/sys/devices/platform/bus@0/17000000.gpu/devfreq/17000000.gpu"
POWER = "*/hwmon1/curr?_input"


@pytest.fixture
def tree(tmp_path):
    return LiveTree(tmp_path / "board")


# ------------------------------------------------------------------------------------------------------- what there is


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDS.glob("*.json")))
def test_every_board_record_is_a_device(name, tmp_path):
    root = unpack(name, tmp_path / "tree")
    known = {device.backend: device for device in known_devices(str(root))}
    record = json.loads((RECORDS / f"{name}.json").read_text())
    family = record["expect"]["family"]
    assert family in known
    entry = known[family]
    assert entry.spec == f"{family}?root={root}"
    assert entry.kind == "simulated"  # a copy of a board's files is no board
    knob, *others = entry.knobs
    assert [other.name for other in others] == ["cpu_clock_mhz"] * (family == "jetson")
    assert knob.name == "clock_mhz"
    assert knob.values == tuple(sorted(knob.values))
    assert len(knob.values) > 3
    assert entry.memory_bytes > 1e9
    assert entry.mode
    if record["expect"].get("watts"):
        assert entry.power_w is None  # an energy counter that does not move
        assert [problem for problem in entry.problems if "counter stands still" in problem]
        return
    if record["expect"]["rail"] is None:
        assert entry.power_w is None
        return
    assert entry.power_w > 0
    assert entry.problems == tuple(record["expect"].get("problems", ()))
    device = open_device(entry.spec)
    assert (device.spec, device.name, device.mode) == (entry.spec, entry.name, entry.mode)
    assert device.shares_memory
    assert device.trains_on == ("cpu" if family == "cpu" else "gpu")
    assert "fp32" in device.data_types
    assert ("bf16" in device.data_types) == ("orin" in name or "thor" in name or family != "jetson")
    device.close()


@pytest.mark.parametrize(
    ("compatible", "types"),
    [
        ("maker,rugged-box\0nvidia,p3767-0000\0nvidia,tegra234\0", {"fp32", "tf32", "fp16", "bf16"}),
        ("nvidia,p3971-0089+p3834-0008\0nvidia,tegra264\0", {"fp32", "tf32", "fp16", "bf16"}),
        ("maker,rugged-box\0nvidia,tegra194\0", {"fp32", "fp16"}),
    ],
)
def test_the_chip_tells_the_data_types_of_a_board_of_any_name(compatible, types, tmp_path):
    root = unpack("orin-nano-jp6", tmp_path / "tree")
    device_tree = root / "sys" / "firmware" / "devicetree" / "base"
    (device_tree / "model").write_text("Rugged Box 7\0")
    (device_tree / "compatible").write_text(compatible)
    device = open_device(f"jetson?root={root}")
    assert device.name == "Rugged Box 7"
    assert device.data_types == types
    device.close()


def test_a_folder_without_a_board(tmp_path):
    (tmp_path / "sys").mkdir()
    assert known_devices(str(tmp_path)) == []
    with pytest.raises(DeviceUnavailable, match="no Jetson here") as caught:
        open_device(f"jetson?root={tmp_path}")
    assert caught.value.exit_code == 2
    with pytest.raises(InputError, match="no such folder"):
        known_devices(str(tmp_path / "none"))
    with pytest.raises(InputError, match="no such folder"):
        open_device(f"jetson?root={tmp_path}/none")


def test_a_board_without_a_sensor_is_listed_and_refused(tmp_path):
    root = without_sensor(unpack("orin-nano-jp6", tmp_path / "tree"))
    entry = next(d for d in known_devices(str(root)) if d.backend == "jetson")
    assert entry.power_w is None
    assert entry.sensor == "none"
    assert entry.knobs
    (problem,) = entry.problems
    with pytest.raises(DeviceUnavailable) as caught:
        open_device(entry.spec)
    said = str(caught.value)
    assert problem in said
    assert "looked for" in said
    assert "external:" in said
    assert "\n" not in said


def test_a_board_without_a_clock_is_a_device(tmp_path):
    root = unpack("nano-jp4", tmp_path / "tree")
    for path in (root / "sys").rglob("available_frequencies"):
        path.unlink()
    device = open_device(f"jetson?root={root}")
    assert device.knobs == ()
    assert len(device.problems) == 1
    with device.at(None):
        device.arm_guard(SensorLimit(5.0))
        assert device.power_w() > 0


def test_a_counter_that_may_not_be_read_is_named(tmp_path):
    tree = LiveTree(tmp_path, "cpu-laptop")
    tree.fault("*/energy_uj", "forbidden")
    device = virtual(tree)
    assert "energy_uj" in device.problems[0]
    with pytest.raises(DeviceUnavailable, match=r"energy_uj may not be read.*root") as caught:
        usable(device)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("jetson:nano", "nothing can stand behind"),
        ("jetson?root=", "root, .*=value|meter, root"),
        ("jetson?fan=1", "meter, root"),
        ("jetson?meter=1&meter=2", "once each"),
        ("agent?meter=1", "knobs"),
    ],
)
def test_options_that_cannot_be(spec, said, tmp_path):
    with pytest.raises((InputError, DeviceUnavailable), match=said) as caught:
        open_device(spec)
    assert caught.value.exit_code == 2


def test_options_are_written_so_that_they_are_read(tmp_path):
    root = unpack("orin-nano-jp6", tmp_path / "a & b? 100%=c")
    spec = with_options("jetson", root=root, knobs=None)
    assert "&" not in spec
    assert open_device(spec).power_w() > 0
    assert with_options("cpu", root=None) == "cpu"
    assert with_options("cpu?root=/a", knobs="cpu") == "cpu?root=/a&knobs=cpu"


# ----------------------------------------------------------------------------------------------------------- reading


def test_what_a_reading_holds(device, tree):
    assert device.power_w() > 0
    now = device.conditions()
    assert 20 < now.temperature_c < 60
    assert now.over_current == 0
    assert now.swapped_bytes == 0
    assert device.sensor.covers == "the module"
    before_s = device.now_s()
    device.wait(100)
    assert 100 <= device.now_s() - before_s < 100.1
    with pytest.raises(InputError):
        device.wait(-1)


@pytest.mark.parametrize("kind", ["eio", "vanished", "garbage", "negative", "absurd", "zero", "forbidden"])
def test_a_sensor_that_fails_is_an_error_and_never_a_number(kind, device, tree):
    assert device.power_w() > 0
    fault = tree.fault(POWER, kind)
    device.wait(2)
    with pytest.raises(SensorError):
        device.power_w()
    assert device.conditions().temperature_c is None or device.conditions().temperature_c > 0
    tree.faults.remove(fault)
    device.wait(2)
    assert device.power_w() > 0


def test_a_change_of_load_shows_a_stuck_sensor_too(device, tree):
    tree.fault("*/hwmon1/*_input", "stuck")
    with device.at(device.combinations()[-1]):
        for index in range(60):
            with device.step(make_work(8 if index < 30 else 64)):
                device.wait(0.5)
            device.power_w()
    assert [event.kind for event in device.events()] == ["stuck sensor"]


def test_what_counts_as_stuck():
    stuck = Stuck()
    stuck.notice(0.0, 5.0)
    stuck.change()
    assert not any(stuck.notice(0.01 * i, 5.0) for i in range(10 * STUCK_READINGS))  # too short
    assert stuck.notice(STUCK_S, 5.0)
    assert not stuck.notice(STUCK_S + 1, 5.0)  # told
    assert not stuck.notice(STUCK_S + 2, 5.1)
    assert not any(stuck.notice(20 + i, 5.1) for i in range(100))  # nothing changed
    slow = Stuck(period_s=10)
    slow.notice(0.0, 5.0)
    slow.change()
    assert not any(slow.notice(float(i), 5.0) for i in range(50))
    assert slow.notice(50.0, 5.0)


# ---------------------------------------------------------------------------------------------------------- changing


@pytest.mark.parametrize(
    ("kind", "error"), [("forbidden", DeviceUnavailable), ("eio", DeviceError), ("refused", DeviceError)]
)
def test_a_clock_that_cannot_be_written(kind, error, device, tree):
    before = tree.state()
    tree.fault(f"{GPU}/m*_freq", kind, on="write", until_s=tree.now_s() + 5)
    with pytest.raises(error) as caught, device.at(Knobs(clock_mhz=306.0)):
        pytest.fail("it was set")
    assert type(caught.value) is error
    if kind == "forbidden":
        assert "--device agent" in str(caught.value)
    assert tree.state() == before
    assert device.current() is None


def test_a_clock_that_this_user_may_not_set_is_a_problem_in_words(tmp_path, monkeypatch):
    root = unpack("orin-nano-jp6", tmp_path / "tree")
    monkeypatch.setattr(Tree, "writable", lambda tree, path: "max_freq" not in path)
    device = open_device(f"jetson?root={root}")
    assert "max_freq may not be written" in device.problems[0]
    assert "--device agent" in device.problems[0]
    assert device.power_w() > 0


def test_a_change_that_fails_leaves_the_board_where_it_was_pinned(device, tree):
    before = tree.state()
    with device.at(Knobs(clock_mhz=612.0)) as setting:
        with device.at(Knobs(clock_mhz=714.0)):
            tree.fault(f"{GPU}/max_freq", "eio", on="write")
            with pytest.raises(DeviceError, match="max_freq"):
                setting.change(Knobs(clock_mhz=306.0))
            tree.faults.clear()
            assert device.current() == Knobs(clock_mhz=714.0)
            tree.rewrite(f"{GPU}/max_freq", "1020000000")
            device.wait(2 * CHECK_S)
            device.power_w()  # it still looks after the pin
            assert tree.read(f"{GPU}/max_freq") == "714000000"
        assert device.current() == setting.knobs == Knobs(clock_mhz=612.0)
    assert device.current() is None
    assert tree.state() == before


def test_another_writer_is_told(device, tree):
    with device.at(Knobs(clock_mhz=306.0)):
        tree.rewrite(f"{GPU}/max_freq", "1020000000")
        device.power_w()
        device.wait(2 * CHECK_S)
        device.power_w()
        assert tree.read(f"{GPU}/max_freq") == "306000000"
    kinds = [event.kind for event in device.events()]
    assert kinds == ["another writer"]


def test_in_this_process_nothing_can_be_handed_over(device):
    with device.at(Knobs(clock_mhz=306.0)):
        device.arm_guard(SensorLimit(5.0, max_temp_c=80.0))
    assert device.events() == ()


def test_a_read_that_never_returns_keeps_nobody_else_waiting(device, monkeypatch):
    monkeypatch.setattr("wattune.devices.agent.FRESH_S", 0.2)
    hang, read = threading.Event(), device.controller.read
    device.controller.read = lambda: (hang.wait(60), read())[1]
    thread = threading.Thread(target=device.power_w)
    thread.start()
    device.wait(10.0)
    assert device.conditions().temperature_c is None
    assert thread.is_alive()  # it still hangs, and nobody waited for it
    hang.set()
    thread.join()
    assert device.conditions().temperature_c is not None


# -------------------------------------------------------------------------------------------------------------- agent


def test_without_an_agent(tmp_path):
    with pytest.raises(DeviceUnavailable, match="wattune-agent serve") as caught:
        open_device(f"agent:{tmp_path}/none.sock")
    assert caught.value.exit_code == 2


def test_an_agent_guards_too_and_may_go_away(tmp_path):
    with live(tmp_path / "board", throttled=False) as board:
        root = board.root
        before = Path(f"{root}{GPU}/max_freq").read_text()
        with serving(root, tmp_path / "agent.sock") as agent:
            device = open_device(f"agent:{agent.socket}")
            assert device.name == open_device(f"jetson?root={root}").name
            with device.at(device.combinations()[-1]):
                device.arm_guard(SensorLimit(0.5))  # less than the board ever draws
                lowest, highest = (f"{1e6 * device.knobs[0].values[end]:.0f}" for end in (0, -1))
                assert wait_for(lambda: Path(f"{root}{GPU}/max_freq").read_text().strip() == lowest)
                device.power_w()
                assert Path(f"{root}{GPU}/max_freq").read_text().strip() == highest
                device.wait(2 * CHECK_S)
                device.power_w()
                assert {"guard", "reading again"} <= {event.kind for event in device.events()}
            assert Path(f"{root}{GPU}/max_freq").read_text() == before
        with pytest.raises(SensorError):
            device.power_w()
        with pytest.raises(DeviceUnavailable), device.at(device.combinations()[0]):
            pytest.fail("it was pinned")
        device.close()
