"""Checks of simulated sensors: the findings match the properties that each was built with."""

from __future__ import annotations

import pytest
from tests.support.doctor_bench import Bench, LiveLoad, Switch
from tests.support.live.tree import LiveTree

from wattune.devices import Sensor
from wattune.devices.agent import BoardDevice
from wattune.doctor.sensor_checks import check_sensing
from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board


def check(bench, load=None):
    checks, figures = check_sensing(bench, load or Switch(bench))
    return {finding.name: finding for finding in checks}, figures


@pytest.mark.parametrize("window_s", [0.1, 0.42, 1.0])
@pytest.mark.parametrize("period_s", [0.007, 0.05])
def test_window_period_and_resolution_are_found(window_s, period_s):
    findings, figures = check(Bench(window_s=window_s, period_s=period_s, step_w=0.04, noise_w=0.03))
    assert all(finding.state == "ok" for finding in findings.values()), findings
    assert figures["step_w"] == pytest.approx(2.0, abs=0.05)
    assert figures["half_s"] == pytest.approx(window_s / 2, abs=0.1 * window_s + 2 * period_s)
    assert (figures["most_s"] - figures["tenth_s"]) / 0.8 == pytest.approx(window_s, abs=0.2 * window_s + 2 * period_s)
    assert figures["resolution_w"] == pytest.approx(0.04, abs=1e-6)
    assert period_s - 0.004 <= figures["period_s"] <= 2 * period_s + 0.004


def test_a_sensor_with_a_long_update_period():
    findings, figures = check(Bench(window_s=0.42, period_s=0.42, noise_w=0.02))
    assert figures["period_s"] == pytest.approx(0.42, abs=0.01)
    assert findings["rate"].state == "ok"


def test_a_sensor_that_updates_less_often_than_it_claims():
    findings, _ = check(Bench(period_s=0.5, noise_w=0.02, reported=Sensor("VDD_IN", period_s=0.007)))
    assert findings["rate"].state == "warn"
    assert "less often than the 7 ms" in findings["rate"].text
    assert "--submit" in findings["rate"].fix


def test_a_sensor_that_lags_more_than_it_claims():
    findings, _ = check(Bench(window_s=3.0, period_s=0.01, noise_w=0.01, reported=Sensor("VDD_IN", period_s=0.01)))
    assert findings["lag"].state == "warn"
    assert "settle within 0.01 s" in findings["lag"].text
    assert "--submit" in findings["lag"].fix


def test_a_stuck_sensor_shows_no_step():
    findings, figures = check(Bench(busy_w=3.0, period_s=0.01))
    assert findings["lag"].state == "warn"
    assert "stuck" in findings["lag"].fix
    assert findings["rate"].state == "warn"
    assert "step_w" not in figures


def test_a_step_within_the_noise_is_not_reported():
    findings, _ = check(Bench(noise_w=0.4, busy_w=3.5, period_s=0.01))
    assert findings["lag"].state == "warn"
    assert "noise" in findings["lag"].text
    assert findings["noise"].state == "warn"


def test_occasional_read_failures_are_reported():
    findings, _ = check(Bench(fails=0.2, noise_w=0.01))
    assert findings["sensor"].state == "warn"
    assert "EIO" in findings["sensor"].text


def test_a_sensor_that_never_answers_is_a_failure():
    findings, figures = check(Bench(fails=1.0))
    assert [finding.state for finding in findings.values()] == ["fail"]
    assert figures == {}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "clock"), [("orin-nano", "jetson"), ("nano", "jetson"), ("cpu-laptop", "cpu")])
def test_on_a_live_board(tmp_path, family, clock):
    tree = LiveTree(tmp_path / family, family)
    before = tree.state()
    device = BoardDevice(Controller(find_board(tree, clock)), tree)
    findings, figures = check(device, LiveLoad(tree))
    assert figures["step_w"] > 0.3
    assert figures["most_s"] < 2.0
    assert {finding.state for finding in findings.values()} <= {"ok", "warn"}
    assert findings["lag"].state == "ok", findings["lag"]
    assert (tree.state(), list(tree.writes)) == (before, []), "nothing on the board is changed"
