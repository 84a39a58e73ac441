"""Members of a group compute and wait in turn: by how much that raises the mean power over a window."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.device_examples import make_work, quiet

from wattune.devices import Meter, Sensor, SimulatedDevice, builtin_board
from wattune.devices.group import device_group
from wattune.devices.group.member_readings import MemberReadings, surplus

SENSOR = Sensor(rail="VDD", resolution_w=0.0, period_s=0.1, window_s=0.1, lag_s=0.0, noise_w=0.0)


def computing(busy, begin, end):
    """Computing between two times, in steps, with the computing at the begin of each step."""

    def until(time):
        return time // 1 * busy + min(time % 1, busy)

    return until(end) - until(begin)


@given(st.floats(0.01, 1.0), st.floats(0.1, 20.0), st.floats(0.0, 1.0))
def test_no_window_has_more_computing_than_its_surplus(busy, steps, begin):
    assert computing(busy, begin, begin + steps) - busy * steps <= surplus(busy, steps) + 1e-9


@given(st.floats(0.01, 1.0), st.integers(1, 20), st.floats(0.02, 0.98))
@example(0.421875, 19, 0.375)  # its highest window lies between lengths that differ by half a percent
def test_some_window_nearly_has_it(busy, whole, rest):
    most = max(computing(busy, begin, begin + length) - busy * length for begin, length in windows(whole + rest))
    assert most >= surplus(busy, whole + rest) - 0.02


def windows(steps):
    """Of lengths within one percent, so close that 20 steps differ by 0.02 from one to the next."""
    return [(begin / 100, steps * share / 1000) for begin in range(100) for share in range(990, 1011)]


def test_readings_count_once_the_sensor_has_settled():
    readings = MemberReadings(SENSOR)
    readings.add(0.0, [2.0, 1.0], is_at_rest=True)
    readings.add(0.5, [6.0, 3.0], is_at_rest=False)
    readings.restart(1.0)
    readings.add(1.1, [7.0, 9.0], is_at_rest=False)
    assert readings.means_w() == []
    assert readings.ripples_w([0.1, 0.05], 0.1, 1.0) == []
    for power_w in (5.0, 5.2):
        readings.add(1.3, [8.0, power_w], is_at_rest=False)
    assert readings.means_w() == pytest.approx([8.0, 5.1])
    first_w, second_w = readings.ripples_w([0.1, 0.05], 0.1, 1.03)
    assert first_w == 0.0  # it never waits
    assert second_w == pytest.approx((5.1 - 1.0) / 0.5 * surplus(0.5, 10.3) * 0.1 / 1.03)


def test_the_sum_of_simulated_boards_varies_no_more():
    group = device_group([SimulatedDevice(quiet(builtin_board("jetson-tx2-nx")), seed=seed) for seed in (1, 2)])
    work, setting = make_work(8, gflop=70.0), group.combinations()[2]
    group._table[setting.first] = (setting.first, group.members[1].knobs[0].values[6])
    truth = group.ground_truth(None, 1.0)
    means_w, figures = [], []
    with group.at(group.safest) as held, Meter(group):
        group.wait(2.0)
        held.change(setting)
        for _ in range(400):
            with group.step(work):
                pass
            means_w.append(truth.window_mean_w())
            figures.append(truth.figures())
        ripple_w = group.ripple_w(max(group.compute_s), 1.0)
    highest_w, first, last = max(means_w[40:]), figures[40], figures[-1]
    mean_w = (last.energy_j - first.energy_j) / (last.time_s - first.time_s)
    assert mean_w < highest_w <= mean_w + 1.02 * ripple_w
    assert ripple_w < 0.1 * mean_w
