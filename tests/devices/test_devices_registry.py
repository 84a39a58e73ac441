"""Names of devices."""

import subprocess
import sys
import tempfile
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tests.support.agent_socket import serving
from tests.support.board_records import unpack
from tests.support.device_examples import FileDevice, make_table
from tests.support.fake_nvml import FakeGpu, FakeLibrary, install

import wattune.devices.registry as registry
from wattune.devices import OPENERS, Device, builtin_board, known_devices, open_device
from wattune.devices.simulator.board_file import BOARDS
from wattune.errors import DeviceError, InputError, RecordError, UnknownName


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    return unpack("orin-nano-jp6", tmp_path_factory.mktemp("board") / "tree")


def test_every_registered_name_opens(tmp_path, board, monkeypatch):
    install(monkeypatch, tmp_path, FakeLibrary(FakeGpu()))
    with serving(board, tmp_path / "agent.sock") as agent:
        specs = {
            "agent": f"agent:{agent.socket}",
            "auto": f"auto?root={board}",
            "cpu": f"cpu?root={board}",
            "external": "external:echo 5",
            "jetson": f"jetson?root={board}",
            "nvidia": "nvidia",
            "replay": f"replay:{make_table().save(tmp_path / 'table.json')}",
            "sim": "sim:jetson-nano",
        }
        assert set(specs) == set(OPENERS)
        for spec in specs.values():
            device = open_device(spec)
            assert isinstance(device, Device)
            assert device.spec == spec.replace("auto", "jetson")  # the one that it found
            device.close()


def test_every_simulated_device_opens_and_is_described():
    known = [device for device in known_devices() if device.backend == "sim"]
    assert {"sim:jetson-nano", "sim:jetson-nano:cpu", "sim:jetson-tx2-nx"} <= {device.spec for device in known}
    for entry in known:
        device = open_device(entry.spec)
        assert entry.name == device.name == entry.spec
        assert entry.knobs == device.knobs
        several = ["clock_mhz", "memory_clock_mhz", "cpu_clock_mhz"]
        assert [knob.name for knob in entry.knobs] == (several if entry.spec == "sim:jetson-tx2" else several[:1])
        assert entry.kind == "simulated"
        assert entry.problems == device.problems
        assert entry.power_w == device.power_w()
        if device.board.calibrated is True:
            step = 76 if entry.spec == "sim:jetson-tx2" else 40.5
            assert f"every 0.422 s, mean over 0.422 s, steps of {step} mW" in entry.sensor


def test_what_is_here_is_listed_or_says_why_not():
    """On this machine, whatever it has: nothing but problems in words."""
    for entry in known_devices():
        if entry.problems:
            assert all(problem and "\n" not in problem for problem in entry.problems)
        else:
            open_device(entry.spec).close()


def test_a_third_party_that_fails_spoils_nothing(monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint("ill", f"{__name__}:open_ill", group)])
    (entry,) = (device for device in known_devices() if device.backend == "ill")
    assert entry.name == "files"
    assert entry.power_w is None
    assert "cannot be read" in entry.problems[0]


def open_ill(rest, *, seed=0):
    device = FileDevice(Path(tempfile.mkdtemp()))
    device.power_file.unlink()
    return device


def test_a_board_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text((BOARDS / "jetson-nano.toml").read_text().replace('name = "jetson-nano"', 'name = "mine"'))
    assert open_device(str(path)).name == "sim:mine"
    assert open_device(f"sim:{path}:cpu").name == open_device(f"{path}:cpu").name == "sim:mine:cpu"
    assert open_device(f"{path}:cpu").knobs[0].values == builtin_board("jetson-nano").cpu.clocks_mhz


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("jetson-nano", UnknownName, "sim:jetson-nano, sim:jetson-nano:cpu"),
        ("", UnknownName, "sim:jetson-nano"),
        ("sim:", UnknownName, "sim:jetson-nano"),
        ("sim:jetson-nona", UnknownName, "jetson-nano"),
        ("cuda:0", UnknownName, "nvidia:0, replay:TABLE.csv"),
        ("Jetson", UnknownName, "jetson"),
        ("jetson-orin?root=/", UnknownName, "jetson"),
        ("recorded:profile.json", UnknownName, "replay:TABLE.csv"),
        ("replay", UnknownName, "replay:TABLE.csv"),
        ("replay:nowhere.csv", RecordError, "cannot read nowhere.csv"),
        ("replay:nowhere.json", RecordError, "no such record"),
        ("nowhere.toml", InputError, "no such board file"),
    ],
)
def test_what_is_not_a_device_is_answered_in_one_line(spec, error, said):
    with pytest.raises(error, match=said) as caught:
        open_device(spec)
    assert "\n" not in str(caught.value)


def open_files(rest, *, seed=0):
    if not rest:
        raise InputError("files: needs a folder", hint="files:FOLDER")
    return FileDevice(Path(rest))


def test_third_parties_add_devices(tmp_path, monkeypatch):
    points = [
        EntryPoint("files", f"{__name__}:open_files", registry.GROUP),
        EntryPoint("broken", "no_such_module:open", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert open_device(f"files:{tmp_path}").power_w() == 4.321
    with pytest.raises(DeviceError, match="broken cannot be loaded"):
        open_device("broken")
    problems = {entry.spec: entry.problems for entry in known_devices() if entry.problems}
    assert problems["files"] == ("files: needs a folder; files:FOLDER",)
    assert "no_such_module" in problems["broken"][0]
    with pytest.raises(UnknownName, match="files"):
        open_device("nothing")


def test_devices_load_no_torch():
    code = "import sys, wattune.devices as d; d.known_devices(); print({'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
