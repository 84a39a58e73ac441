"""The device of docs/own-device.md: taken from the page, registered, opened, and held to the contract."""

import json
import os
import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tests.devices.contract import DeviceContract
from tests.support.fake_server import Answer, faked

import wattune.devices.registry as registry
from wattune.devices import known_devices, open_device
from wattune.errors import DeviceUnavailable, SensorError

PAGE = (Path(__file__).parents[2] / "docs" / "own-device.md").read_text(encoding="utf-8")


@pytest.fixture
def monitors(tmp_path, monkeypatch):
    """A server's files, and the page's package as if it were installed."""
    code = re.search(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "wattune_acpi.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wattune_acpi", raising=False)
    name, value = re.search(r'^(\w+) = "(wattune_acpi:\w+)"$', PAGE, re.MULTILINE).groups()
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint(name, value, group)])
    for number, (kind, power) in enumerate([("nvme", None), ("power_meter", "135012000\n")]):
        folder = tmp_path / "hwmon" / f"hwmon{number}"
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{kind}\n")
        if power:
            (folder / "power1_average").write_text(power)
            (folder / "power1_average_interval").write_text("2000\n")
    return tmp_path / "hwmon"


class TestOwnDevice(DeviceContract):
    @pytest.fixture
    def device(self, monitors):
        return open_device(f"acpi:{monitors}")

    another = device


def test_the_page_keeps_what_it_promises(monitors):
    device = open_device(f"acpi:{monitors}")
    assert device.power_w() == pytest.approx(135.012)
    assert device.sensor.window_s == 2.0
    power = monitors / "hwmon1" / "power1_average"
    power.write_text("N/A\n")
    with pytest.raises(SensorError, match="power1_average"):
        device.power_w()
    (monitors / "hwmon1" / "name").write_text("psu\n")
    with pytest.raises(DeviceUnavailable, match="looked for"):
        open_device(f"acpi:{monitors}")
    entry = next(d for d in known_devices() if d.backend == "acpi")
    assert entry.spec == "acpi"
    assert entry.knobs == ()


AMD_SMI = [{"gpu": 0, "power": {"socket_power": {"value": 143, "unit": "W"}}}]
POWERMETRICS = """
**** Processor usage ****
CPU Power: 1043 mW
GPU Power: 210 mW
ANE Power: 0 mW
Combined Power (CPU + GPU + ANE): 1253 mW
"""


def test_the_documented_commands_are_read(tmp_path, monkeypatch):
    """With programs in their place that print what the real ones are said to print."""
    lines = re.findall(r"^    (external:[^h].*)$", PAGE, re.MULTILINE)
    script = re.search(r"^```text\n(#!/bin/sh\n# mac-power.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
    programs = {
        "amd-smi": f"#!/bin/sh\necho '{json.dumps(AMD_SMI)}'\n",
        "powermetrics": f"#!/bin/sh\ncat <<END\n{POWERMETRICS}END\n",
        "sudo": '#!/bin/sh\nexec "$@"\n',
        "mac-power": script,
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    devices = [open_device(line) for line in lines]
    assert [device.power_w() for device in devices] == pytest.approx([143.0, 1.253])
    assert {device.sensor.period_s for device in devices} == {1.0}


def test_the_documented_address_is_read():
    (line,) = re.findall(r"^    (external:http.*)$", PAGE, re.MULTILINE)
    with faked(lambda asked: Answer(body={"StatusSNS": {"ENERGY": {"Power": 41.5}}})) as plug:
        here = re.sub(r"http://[^/]+", plug.url, line)
        assert open_device(here).power_w() == 41.5
        assert plug.asked[0].path == "/cm?cmnd=Status%208"
