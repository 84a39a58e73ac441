"""What is found of a sensor is what it was made with."""

from __future__ import annotations

import pytest
from doctor_bench import Bench, LiveLoad, Switch
from tests.live.tree import LiveTree

from wattune.devices import Sensor
from wattune.devices.local import BoardDevice
from wattune.doctor.sensing import check_sensing
from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board


def sensed(bench, load=None):
    found, figures = check_sensing(bench, load or Switch(bench))
    return {finding.name: finding for finding in found}, figures


@pytest.mark.parametrize("window_s", [0.1, 0.42, 1.0])
@pytest.mark.parametrize("period_s", [0.007, 0.05])
def test_window_period_and_resolution_are_found(window_s, period_s):
    found, figures = sensed(Bench(window_s=window_s, period_s=period_s, step_w=0.04, noise_w=0.03))
    assert all(finding.state == "ok" for finding in found.values()), found
    assert figures["step_w"] == pytest.approx(2.0, abs=0.05)
    assert figures["half_s"] == pytest.approx(window_s / 2, abs=0.1 * window_s + 2 * period_s)
    assert (figures["most_s"] - figures["tenth_s"]) / 0.8 == pytest.approx(window_s, abs=0.2 * window_s + 2 * period_s)
    assert figures["resolution_w"] == pytest.approx(0.04, abs=1e-6)
    assert period_s - 0.004 <= figures["period_s"] <= 2 * period_s + 0.004


def test_a_sensor_that_holds_for_long():
    found, figures = sensed(Bench(window_s=0.42, period_s=0.42, noise_w=0.02))
    assert figures["period_s"] == pytest.approx(0.42, abs=0.01)
    assert found["rate"].state == "ok"


def test_one_that_is_fresh_less_often_than_it_says():
    found, _ = sensed(Bench(period_s=0.5, noise_w=0.02, said=Sensor("VDD_IN", period_s=0.007)))
    assert found["rate"].state == "warn"
    assert "less often than the 7 ms" in found["rate"].text
    assert "--submit" in found["rate"].fix


def test_one_that_lags_more_than_it_says():
    found, _ = sensed(Bench(window_s=3.0, period_s=0.01, noise_w=0.01, said=Sensor("VDD_IN", period_s=0.01)))
    assert found["lag"].state == "warn"
    assert "takes readings for settled after 0.01 s" in found["lag"].text
    assert "--submit" in found["lag"].fix


def test_a_stuck_sensor_shows_no_step():
    found, figures = sensed(Bench(busy_w=3.0, period_s=0.01))
    assert found["lag"].state == "warn"
    assert "stuck" in found["lag"].fix
    assert found["rate"].state == "warn"
    assert "step_w" not in figures


def test_a_step_in_the_noise_is_not_taken_for_one():
    found, _ = sensed(Bench(noise_w=0.4, busy_w=3.5, period_s=0.01))
    assert found["lag"].state == "warn"
    assert "noise" in found["lag"].text
    assert found["noise"].state == "warn"


def test_readings_that_fail_now_and_then_are_told():
    found, _ = sensed(Bench(fails=0.2, noise_w=0.01))
    assert found["sensor"].state == "warn"
    assert "EIO" in found["sensor"].text


def test_a_sensor_that_never_answers_is_a_failure():
    found, figures = sensed(Bench(fails=1.0))
    assert [finding.state for finding in found.values()] == ["fail"]
    assert figures == {}


@pytest.mark.parametrize(("family", "clock"), [("orin-nano", "jetson"), ("nano", "jetson"), ("cpu-laptop", "cpu")])
def test_on_a_live_board(tmp_path, family, clock):
    tree = LiveTree(tmp_path / family, family)
    before = tree.state()
    device = BoardDevice(Controller(find_board(tree, clock)), tree)
    found, figures = sensed(device, LiveLoad(tree))
    assert figures["step_w"] > 0.3
    assert figures["most_s"] < 2.0
    assert {finding.state for finding in found.values()} <= {"ok", "warn"}
    assert found["lag"].state == "ok", found["lag"]
    assert (tree.state(), list(tree.writes)) == (before, []), "it changes nothing"
