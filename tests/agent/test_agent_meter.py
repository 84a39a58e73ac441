"""A board's clock with a meter of the user's: boards without a sensor of their own, and caps at the supply."""

import json
import shlex
import sys

import pytest
from tests.support.agent_trees import HIGH, gpu_tree, put, texts

from wattune.devices import open_device
from wattune.devices.spec_options import with_options
from wattune.doctor import try_switch
from wattune.errors import DeviceUnavailable, InputError
from wattune_agent.__main__ import main


@pytest.fixture
def root(tmp_path):
    """A board without a sensor."""
    return gpu_tree(tmp_path / "board")


@pytest.fixture
def meter(root, tmp_path):
    """A meter that shows 1 W for each 100 MHz of the board's upper limit."""
    script = tmp_path / "meter.py"
    script.write_text("print(int(open({!r}).read()) / 1e8)".format(str(root) + HIGH))
    return "external:{} -S {}#period_s=0.05".format(sys.executable, script)


def guarded(root, *options):
    code = "import time; time.sleep(4)"
    return main(["guard", "--sysfs-root", str(root), *options, "--json", "--", sys.executable, "-S", "-c", code])


@pytest.mark.slow
def test_a_board_without_a_sensor_is_guarded_by_a_meter(root, meter, capfd):
    before = texts(root)
    assert guarded(root, "--cap", "6W", "--clock", "1020MHz") == 2
    assert "no power sensor" in capfd.readouterr().err
    for cap in ("6W", "6W@supply"):
        assert guarded(root, "--cap", cap, "--clock", "1020MHz", "--meter", meter) == 0
        report = json.loads(capfd.readouterr().out)
        assert report["cap_w"] == 6.0
        assert report["power_mean_w"] < 8.0
        assert min(setting for setting, _ in report["settings_s"]) <= 510.0
        assert texts(root) == before


def test_a_device_with_a_meter_has_the_boards_clock(root, meter):
    spec = with_options("jetson", root=root, meter=meter)
    with pytest.raises(DeviceUnavailable, match="no power sensor"):
        open_device(with_options("jetson", root=root))
    device = open_device(spec)
    try:
        assert device.knobs[0].values[-1] == 1020.0
        assert device.power_w() == pytest.approx(10.2)
        assert device.sensor.covers == "what is plugged into the meter"
        assert (device.supply.other_w, device.supply.efficiency) == (0.0, 1.0)
        assert not [problem for problem in device.problems if "sensor" in problem]
    finally:
        device.close()


@pytest.mark.parametrize("meter", ["sim:jetson-nano", "external:", "external:echo 5#unit=hp"])
def test_what_is_no_meter_is_refused_in_one_line(root, meter, capsys):
    assert main(["guard", "--sysfs-root", str(root), "--meter", meter, "--cap", "6W", "--", "true"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    with pytest.raises(InputError):
        open_device("jetson?root={}&meter={}".format(root, shlex.quote(meter)))


def test_a_meter_that_gives_no_reading_is_said_before_anything_runs(root, tmp_path, capsys):
    ran = put(tmp_path, "/ran", "")
    ran.unlink()
    options = ["--meter", "external:false", "--cap", "6W"]
    assert main(["guard", "--sysfs-root", str(root), *options, "--", "touch", str(ran)]) != 0
    assert "ended with 1" in capsys.readouterr().err
    assert not ran.exists()


def test_a_switch_that_cannot_be_measured_is_said_and_the_board_restored(root, tmp_path):
    script = tmp_path / "meter.py"
    script.write_text("import os; print(5 if not os.path.exists({!r}) else '')".format(str(tmp_path / "gone")))
    meter = "external:{} -S {}#period_s=0.001".format(sys.executable, script)
    before = texts(root)
    device = open_device(with_options("jetson", root=root, meter=meter))
    try:
        assert "did not show" in try_switch(device)  # the files of this clock do not move
        (tmp_path / "gone").touch()
        assert "could not be measured: the meter's answer is not a number" in try_switch(device)
    finally:
        device.close()
    assert texts(root) == before
