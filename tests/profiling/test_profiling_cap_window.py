"""Profiles under a cap on the mean power over a window, and what is planned on them."""

from __future__ import annotations

from typing import Literal

import pytest
from tests.support.profiles import board, workload

import wattune
from wattune.cap import PowerCap
from wattune.errors import InputError
from wattune.planning import plan
from wattune.profiling import confirm, profile
from wattune.records import EfficiencyPoint, ProfileTable, SampleEfficiency

SIZES = (8, 32, 128)
CAP_W = 4.6
NOISE_W = 0.06


def curve() -> SampleEfficiency:
    relative = {8: 0.5, 32: 0.55, 128: 1.0}
    points = (EfficiencyPoint(batch_size=b, relative_samples=r, low=r, high=r) for b, r in relative.items())
    return SampleEfficiency(workload="small", reference_batch_size=128, points=tuple(points))


def measured(
    strategy: str, window: float | Literal["peak"], *, seed: int = 1, noise_w: float = NOISE_W
) -> ProfileTable:
    device = board(noise_w=noise_w, seed=seed)
    limit = PowerCap(CAP_W, window=window).at_sensor(None, device.sensor.window_s)
    return profile(device, workload(batch_sizes=SIZES), strategy=strategy, limit=limit, reference=False)


def true_w(point) -> float:
    """The power of the point without noise, by a board of its own."""
    exact = profile(board(), workload(batch_sizes=SIZES), reference=False)
    return next(cell.power_mean_w for cell in exact.cells if cell.point == point)


ALONG_THE_CAP = [pytest.param(strategy, marks=pytest.mark.slow) for strategy in ("staircase", "full")]


@pytest.mark.parametrize("strategy", ["guided", *ALONG_THE_CAP])
def test_what_is_picked_keeps_the_cap_and_noise_costs_no_clock(strategy):
    picked = plan(measured(strategy, 1.0), curve(), cap=PowerCap(CAP_W, window=1.0))
    exact = plan(measured("full", 1.0, noise_w=0.0), curve(), cap=PowerCap(CAP_W, window=1.0))
    assert true_w(picked.point) <= 1.01 * CAP_W
    assert picked.step_s / picked.batch_size <= 1.1 * exact.step_s / exact.batch_size
    assert picked.predicted_window_w <= CAP_W
    assert picked.cap_window_s == 1.0
    assert picked.limit.window_s == 1.0


@pytest.mark.slow
def test_the_table_says_over_which_time_it_was_measured():
    table = measured("full", 1.0)
    assert table.cap_window_s == 1.0
    for cell in table.measured:
        assert 0.99 * cell.power_mean_w <= cell.power_window_w <= cell.power_peak_w + 1e-9
    peaks = measured("full", "peak")
    assert peaks.cap_window_s is None
    assert {cell.power_window_w for cell in peaks.cells} == {None}


def test_single_readings_above_the_cap_stop_no_probe():
    table = measured("staircase", 1.0)
    assert any(cell.power_peak_w > CAP_W for cell in table.measured)
    assert all(probe.power_w > CAP_W for probe in table.aborted)


@pytest.mark.slow
def test_a_table_of_single_readings_is_planned_on_for_a_window_with_what_its_noise_may_hide():
    table = measured("full", "peak")
    by_peak, by_mean = (plan(table, curve(), cap=PowerCap(CAP_W, window=window)) for window in ("peak", 1.0))
    assert by_peak.predicted_peak_w <= CAP_W
    assert by_mean.relative_time <= by_peak.relative_time
    assert true_w(by_mean.point) <= CAP_W


@pytest.mark.slow
def test_a_second_look_measures_both_stretches_together():
    device = board(noise_w=NOISE_W, seed=3)
    limit = PowerCap(CAP_W, window=1.0).at_sensor(None, device.sensor.window_s)
    work = workload(batch_sizes=SIZES)
    table = profile(device, work, strategy="staircase", limit=limit, reference=False)
    point = plan(table, curve(), cap=PowerCap(CAP_W, window=1.0)).point
    before = next(cell for cell in table.cells if cell.point == point)
    again = confirm(device, work, table, point, limit)
    after = next(cell for cell in again.cells if cell.point == point)
    assert (after.step_s, after.step_std_s) == (before.step_s, before.step_std_s)
    assert after.steps > before.steps
    assert abs(after.power_mean_w - true_w(point)) < 0.02 * CAP_W
    assert again.confirmed[-1].point == point


def test_a_window_shorter_than_the_sensors_own_is_refused():
    with pytest.raises(InputError, match=r"the cap's window.*0\.05 s.*0\.1 s or more"):
        PowerCap(CAP_W, window=0.05).at_sensor(None, 0.1)


@pytest.mark.slow
def test_readings_of_the_probe_before_stop_no_probe():
    """A probe right below the cap leaves single readings above it in the sensor."""
    table = wattune.profile("sim:jetson-nano", cap_w=4.5)
    assert table.reference is not None
    assert not [power for power in table.reference.powers if power.stopped and power.clock_mhz == 76.8]
