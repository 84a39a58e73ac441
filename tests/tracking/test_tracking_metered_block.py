"""The meter of any block of code, on simulated and replayed devices, boards as files, and a meter of one's own."""

from __future__ import annotations

import shutil

import pytest
from tests.support.board_records import unpack
from tests.support.device_examples import FileDevice, make_work, quiet
from tests.support.real_time_device import RealTimeDevice

import wattune
from wattune.devices import Fault, SimulatedDevice
from wattune.errors import DeviceUnavailable, InputError, SensorError


def train(device, steps):
    for _ in range(steps):
        with device.step(make_work(gflop=20)):
            pass


def test_the_figures_of_a_simulated_board_are_the_exact_ones():
    device = SimulatedDevice(quiet())
    device.wait(5)
    truth = device.ground_truth(None)
    with wattune.meter(device) as m:
        device.wait(10)
        train(device, 200)
        device.wait(10)
    exact = truth.figures()
    assert m.seconds == pytest.approx(exact.time_s)
    assert m.energy_j == pytest.approx(exact.energy_j, rel=0.01)
    assert m.power_mean_w == pytest.approx(m.energy_j / m.seconds)
    assert m.power_mean_w < m.power_peak_w
    assert m.samples == pytest.approx(10 * m.seconds, abs=1)
    assert str(m).endswith("(sim:jetson-nano, simulated)")


@pytest.mark.parametrize("board", ["orin-nano-jp6", "tx2-jp4"])
def test_a_board_as_files_is_measured_and_left_as_it_was(board, tmp_path):
    root = unpack(board, tmp_path / "board")
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with wattune.meter(f"auto?root={root}") as m:
        pass
    assert m.energy_j == pytest.approx(m.power_mean_w * m.seconds)
    assert 0 < m.power_mean_w <= m.power_peak_w * 1.001
    assert m.samples >= 1
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_block_inside_a_block_has_its_own_figures():
    device = SimulatedDevice(quiet())
    device.wait(5)
    with wattune.meter(device) as whole:
        device.wait(10)
        with wattune.meter(device) as part:
            train(device, 100)
    assert whole.seconds == pytest.approx(10 + part.seconds)
    assert part.power_mean_w > whole.power_mean_w


def test_figures_can_be_read_while_the_block_runs():
    device = SimulatedDevice(quiet())
    with wattune.meter(device) as m:
        device.wait(2)
        first_j = m.energy_j
        device.wait(2)
        assert m.energy_j == pytest.approx(2 * first_j, rel=0.05)
    assert m.seconds == pytest.approx(4)


def fail_after(seconds, device, m):
    with m:
        device.wait(seconds)
        raise ZeroDivisionError


def test_an_error_in_the_block_is_raised_and_the_figures_stay():
    device = SimulatedDevice(quiet())
    m = wattune.meter(device)
    with pytest.raises(ZeroDivisionError):
        fail_after(2, device, m)
    assert m.seconds == pytest.approx(2)


def test_it_closes_what_it_opened_and_nothing_else(tmp_path, monkeypatch):
    closed = []
    given = RealTimeDevice()
    monkeypatch.setattr(RealTimeDevice, "close", lambda device: closed.append(device))
    monkeypatch.setattr("wattune.tracking.metered_block.open_device", lambda spec: RealTimeDevice())
    with wattune.meter(given):
        pass
    assert closed == []
    m = wattune.meter()
    for blocks in (1, 2):
        with m:
            pass
        assert len(closed) == blocks


# ---------------------------------------------------------------------------------------------------- a missing sensor


def test_without_a_sensor_the_block_does_not_begin(tmp_path):
    root = unpack("orin-nano-jp6", tmp_path / "board")
    for folder in ("bus/i2c", "class/hwmon/hwmon1", "devices/platform/bus@0/c240000.i2c"):
        path = root / "sys" / folder
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    with pytest.raises(DeviceUnavailable) as caught:
        with wattune.meter(f"auto?root={root}"):
            pytest.fail("the block began")
    assert "no device to train on was found" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_sensor_that_does_not_answer_at_first(tmp_path):
    device = FileDevice(tmp_path)
    device.power_file.unlink()
    with pytest.raises(SensorError):
        with wattune.meter(device):
            pytest.fail("the block began")


def test_a_sensor_that_is_lost_on_the_way_is_an_error_and_no_figure():
    device = SimulatedDevice(quiet(fault=(Fault(kind="dropout", time_s=1, duration_s=10),)))
    m = wattune.meter(device)
    with pytest.warns(UserWarning, match="the block was not measured to its end: .* no reading"):
        with m:
            device.wait(8)
    for name in ("seconds", "energy_j", "power_mean_w", "power_peak_w", "samples"):
        with pytest.raises(SensorError, match="the block was not measured to its end"):
            getattr(m, name)


def test_before_the_first_block_there_are_no_figures():
    with pytest.raises(InputError, match="the meter has not run yet"):
        wattune.meter().energy_j  # noqa: B018


def test_a_name_of_a_device_that_runs_no_code_is_refused():
    with pytest.raises(InputError, match="a device on virtual time") as caught:
        with wattune.meter("sim:jetson-nano"):
            pytest.fail("the block began")
    assert "wattune.open_device" in str(caught.value)
