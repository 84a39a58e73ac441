"""Names of devices."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from tests.devices.devices_made import FileDevice, make_table

import wattune.devices.registry as registry
from wattune.devices import OPENERS, Device, builtin_board, known_devices, open_device
from wattune.devices.board import BOARDS
from wattune.errors import DeviceError, InputError, RecordError, UnknownName


def test_every_registered_name_opens(tmp_path):
    rest = {"sim": "jetson-nano", "recorded": str(make_table().save(tmp_path / "profile.json"))}
    assert set(rest) == set(OPENERS)
    for scheme in OPENERS:
        assert isinstance(open_device(f"{scheme}:{rest[scheme]}"), Device)


def test_every_known_device_opens_and_is_described():
    known = known_devices()
    assert {"sim:jetson-nano", "sim:jetson-nano:cpu", "sim:jetson-tx2-nx"} <= {device.spec for device in known}
    for entry in known:
        device = open_device(entry.spec)
        assert entry.name == device.name == entry.spec
        assert entry.settings == device.settings
        assert entry.kind == "simulated"
        assert entry.problems == ()
        assert "every 0.422 s, mean over 0.422 s, steps of 40.5 mW" in entry.sensor


def test_a_board_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text((BOARDS / "jetson-nano.toml").read_text().replace('name = "jetson-nano"', 'name = "mine"'))
    assert open_device(str(path)).name == "sim:mine"
    assert open_device(f"sim:{path}:cpu").name == open_device(f"{path}:cpu").name == "sim:mine:cpu"
    assert open_device(f"{path}:cpu").settings == builtin_board("jetson-nano").cpu.clocks_mhz


@pytest.mark.parametrize(
    ("spec", "error", "said"),
    [
        ("jetson-nano", UnknownName, "sim:jetson-nano, sim:jetson-nano:cpu"),
        ("", UnknownName, "sim:jetson-nano"),
        ("sim:", UnknownName, "sim:jetson-nano"),
        ("sim:jetson-nona", UnknownName, "jetson-nano"),
        ("cuda:0", UnknownName, "recorded:PROFILE.json"),
        ("nowhere.toml", InputError, "no such board file"),
        ("recorded:nowhere.json", RecordError, "no such record"),
    ],
)
def test_what_is_not_a_device_is_answered_in_one_line(spec, error, said):
    with pytest.raises(error, match=said) as caught:
        open_device(spec)
    assert "\n" not in str(caught.value)


def open_files(rest, *, seed=0):
    from pathlib import Path

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


def test_devices_load_neither_torch_nor_plotly():
    code = "import sys, wattune.devices as d; d.known_devices(); print({'torch', 'plotly'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
