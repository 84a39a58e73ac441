"""The device of docs/own-device.md: taken from the page, registered, opened, and held to the contract."""

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tests.devices.contract import DeviceContract

import wattune.devices.registry as registry
from wattune.devices import known_devices, open_device
from wattune.errors import DeviceUnavailable, SensorError

PAGE = (Path(__file__).parents[2] / "docs" / "own-device.md").read_text(encoding="utf-8")


@pytest.fixture
def card(tmp_path, monkeypatch):
    """A card's files, and the page's package as if it were installed."""
    code = re.search(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "wattune_amdgpu.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wattune_amdgpu", raising=False)
    name, value = re.search(r'^(\w+) = "(wattune_amdgpu:\w+)"$', PAGE, re.MULTILINE).groups()
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint(name, value, group)])
    folder = tmp_path / "card0"
    (folder / "device" / "hwmon" / "hwmon3").mkdir(parents=True)
    (folder / "device" / "hwmon" / "hwmon3" / "power1_average").write_text("35012000\n")
    (folder / "device" / "power_dpm_force_performance_level").write_text("auto\n")
    return folder


class TestOwnDevice(DeviceContract):
    @pytest.fixture
    def device(self, card):
        return open_device(f"amdgpu:{card}")

    another = device


def test_the_page_keeps_what_it_promises(card):
    device = open_device(f"amdgpu:{card}")
    assert device.power_w() == pytest.approx(35.012)
    assert device.name == "AMD GPU card0"
    assert device.mode == "level auto"
    power = card / "device" / "hwmon" / "hwmon3" / "power1_average"
    power.write_text("N/A\n")
    with pytest.raises(SensorError, match="power1_average"):
        device.power_w()
    power.unlink()
    with pytest.raises(DeviceUnavailable, match="looked for"):
        open_device(f"amdgpu:{card}")
    power.with_name("power1_input").write_text("41000000\n")  # as newer cards have it alone
    assert open_device(f"amdgpu:{card}").power_w() == pytest.approx(41.0)
    entry = next(d for d in known_devices() if d.backend == "amdgpu")
    assert entry.spec == "amdgpu"
    assert entry.knobs == ()
