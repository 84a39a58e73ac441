"""The mean power over a window against a cap."""

import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.devices.cap_window import NOISE_SHARE, CapWindow, highest_mean

CAP_W = 10.0
PERIOD_S = 0.1
watts = st.floats(0.1, 100.0)


def fed(window, readings_w, begin_s=0.0):
    """The index of the first reading at which the power is above the cap; None if it never is."""
    first = None
    for index, power_w in enumerate(readings_w):
        window.add(begin_s + index * PERIOD_S, power_w)
        if window.is_above and first is None:
            first = index
    return first


def noisy(mean_w, count, noise_w, seed=0):
    draw = random.Random(seed)
    return [mean_w + noise_w * draw.gauss(0, 1) for _ in range(count)]


@given(st.lists(watts, min_size=1, max_size=40))
def test_without_a_window_a_single_reading_above_the_cap_is_above(readings_w):
    window = CapWindow(CAP_W, None)
    for index, power_w in enumerate(readings_w):
        window.add(index * PERIOD_S, power_w)
        assert window.is_above == (power_w > CAP_W)
        assert window.mean_w == power_w


@given(st.lists(watts, min_size=1, max_size=60), st.integers(1, 20))
def test_the_mean_is_that_of_the_readings_of_the_window(readings_w, count):
    window = CapWindow(CAP_W, count * PERIOD_S)
    fed(window, readings_w)
    assert window.mean_w == pytest.approx(fmean(readings_w[-count:]))
    assert window.is_full == (len(readings_w) >= count and len(readings_w) > 1)


@given(st.lists(watts, min_size=1, max_size=40), st.integers(1, 20))
def test_the_highest_mean_is_that_of_any_readings_in_a_row(readings_w, count):
    starts = range(max(1, len(readings_w) - count + 1))
    assert highest_mean(readings_w, count) == pytest.approx(max(fmean(readings_w[at : at + count]) for at in starts))


@pytest.mark.parametrize("knows_noise", [True, False])
def test_noise_alone_is_not_above_a_cap_that_the_mean_keeps(knows_noise):
    noise_w = 0.02 * CAP_W
    above = 0
    for seed in range(50):
        readings_w = noisy(0.99 * CAP_W, 100, noise_w, seed)
        assert max(readings_w) > CAP_W
        above += fed(CapWindow(CAP_W, 1.0, noise_w=noise_w if knows_noise else 0.0), readings_w) is not None
    assert above <= 5


@pytest.mark.parametrize(("excess", "readings"), [(0.5, 1), (0.1, 4), (0.03, 30)])
def test_the_larger_the_excess_the_sooner_it_is_sure(excess, readings):
    noise_w = 0.02 * CAP_W
    for seed in range(20):
        found = fed(CapWindow(CAP_W, 1.0, noise_w=noise_w), noisy((1 + excess) * CAP_W, 200, noise_w, seed))
        assert found is not None
        assert found < readings


def test_a_burst_is_allowed_as_far_as_the_mean_of_a_long_window_stays_under_the_cap():
    idle_w, burst_w, window_s = 5.0, 15.0, 10.0
    window = CapWindow(CAP_W, window_s, noise_w=0.05)
    assert fed(window, [idle_w] * 100) is None
    found = fed(window, [burst_w] * 100, begin_s=10.0)
    # The mean is at the cap after half of the window.
    assert found is not None
    assert 49 <= found <= 52


def test_a_burst_without_history_is_not_allowed():
    assert fed(CapWindow(CAP_W, 10.0, noise_w=0.05), [15.0] * 5) == 0


def test_readings_of_another_setting_do_not_count():
    window = CapWindow(CAP_W, 1.0, noise_w=0.05)
    fed(window, [15.0] * 20)
    window.restart(0.5)
    # Until the sensor has settled each reading counts by itself: the last of before is not the first of now.
    for index, power_w in enumerate([14.0, 12.0, 10.0, 8.0, 8.0, 8.0]):
        window.add(2.0 + index * PERIOD_S, power_w)
    assert window.mean_w == 8.0
    assert not window.is_above


def test_a_new_window_lets_the_sensor_settle_too():
    window = CapWindow(CAP_W, 1.0, noise_w=0.05)
    window.restart(0.5)
    for index, power_w in enumerate(
        [10.1, 10.1, 10.1, 10.1, 8.0, 8.0, 8.0]
    ):  # the noise of a probe right below the cap
        window.add(2.0 + index * PERIOD_S, power_w)
        assert not window.is_above
    assert window.mean_w == 8.0


def test_a_clock_that_was_set_back_begins_anew():
    window = CapWindow(CAP_W, 1.0)
    fed(window, [15.0] * 20)
    window.add(0.0, 5.0)
    assert window.mean_w == 5.0


def test_a_sensor_that_averages_has_fewer_independent_readings():
    quick, slow = CapWindow(CAP_W, 2.0, noise_w=0.2), CapWindow(CAP_W, 2.0, noise_w=0.2, averaging_s=0.5)
    for window in (quick, slow):
        fed(window, [9.0] * 30)
    assert slow.error_w > 1.9 * quick.error_w


def test_unknown_noise_is_taken_from_the_scatter_but_no_more_than_a_sensor_has():
    calm, alternating = CapWindow(CAP_W, 1.0), CapWindow(CAP_W, 1.0)
    fed(calm, [9.0, 9.01] * 10)
    fed(alternating, [5.0, 13.0] * 10)
    assert calm.error_w < 0.01
    assert alternating.error_w == pytest.approx(NOISE_SHARE * alternating.mean_w / 10**0.5)


@pytest.mark.parametrize(("cap_w", "power_w"), [(None, 1e6), (CAP_W, CAP_W)])
def test_nothing_is_above_without_a_cap_or_at_it(cap_w, power_w):
    assert fed(CapWindow(cap_w, 1.0), [power_w] * 200) is None


def test_the_first_reading_of_a_new_setting_does_not_count_with_the_last_old_one():
    window = CapWindow(5.0, 1.0, averaging_s=0.2)
    window.add(10.0, 9.0)
    window.restart(0.2)
    window.add(10.1, 6.5)  # half of it from before
    assert window.mean_w == 6.5
    window.add(10.2, 4.0)
    assert window.mean_w == 4.0
    window.add(10.3, 4.2)
    assert window.mean_w == pytest.approx(4.1)
