"""The limiter under a cap on the mean power over a window."""

from __future__ import annotations

import random
from contextlib import contextmanager

import pytest
from tests.power.test_power_limiter import Plant

from wattune.cap import SensorLimit
from wattune.devices.base import Sensor
from wattune.point import Knobs
from wattune.power.limiter import PowerLimiter

CAP_W, NOISE_W = 10.0, 0.2
SENSOR = Sensor(rail="all", period_s=0.1, window_s=0.1, noise_w=NOISE_W)


class Clocked(Plant):
    """The plant, with time that passes between readings."""

    def __init__(self):
        super().__init__(powers=(6.0, 7.0, 8.0, 9.0, 11.0), sensor=SENSOR)
        self.time_s = 0.0

    def now_s(self):
        return self.time_s


@contextmanager
def limited(window_s=1.0):
    plant = Clocked()
    with plant.at(Knobs(clock_mhz=500.0)) as setting:
        yield plant, PowerLimiter(plant, setting, SensorLimit(CAP_W, window_s=window_s))


def feed(plant, limiter, readings_w):
    for power_w in readings_w:
        plant.time_s += 0.1
        limiter(plant.time_s, power_w)


def noisy(mean_w, count, seed=0):
    draw = random.Random(seed)
    return [mean_w + NOISE_W * draw.gauss(0, 1) for _ in range(count)]


def test_noise_above_the_cap_lowers_nothing():
    readings_w = noisy(9.9, 600)
    assert max(readings_w) > CAP_W + NOISE_W
    with limited() as (plant, limiter):
        feed(plant, limiter, readings_w)
        assert limiter.events == ()
    with limited(window_s=None) as (plant, limiter):
        feed(plant, limiter, readings_w)
        assert limiter.pushed


@pytest.mark.parametrize(("power_w", "within_s"), [(11.0, 0.4), (10.3, 3.0)])
def test_a_mean_above_the_cap_lowers_the_setting(power_w, within_s):
    with limited() as (plant, limiter):
        feed(plant, limiter, noisy(power_w, 100))
        first = limiter.events[0]
        assert first.action == "down"
        assert first.setting < 500.0
        assert first.time_s <= within_s
        assert CAP_W < first.power_w < power_w + 3 * NOISE_W


def test_after_a_step_down_what_was_read_before_does_not_count():
    with limited() as (plant, limiter):
        feed(plant, limiter, [11.0])
        assert limiter.knobs["clock_mhz"] < 400.0  # what the window holds is paid back
        for _ in range(100):
            feed(plant, limiter, noisy(plant.power_w(), 1))
        assert limiter.knobs == Knobs(clock_mhz=400.0)
        assert [event.action for event in limiter.events] == ["down", "up"]


def test_a_probe_is_not_blamed_for_what_was_read_of_the_one_that_crossed_the_cap():
    with limited() as (plant, limiter):
        limiter.move(Knobs(clock_mhz=500.0), probe=True)
        feed(plant, limiter, noisy(11.0, 10))
        assert limiter.crossed_w == pytest.approx(11.0, abs=3 * NOISE_W)
        assert limiter.knobs == plant.safest
        limiter.move(Knobs(clock_mhz=400.0), probe=True)
        feed(plant, limiter, [11.0, *noisy(9.0, 20)])
        assert limiter.crossed_w is None
        feed(plant, limiter, noisy(11.0, 10))  # it is answered as soon as the sensor has settled
        assert limiter.crossed_w is not None


def test_a_probe_at_the_same_clock_begins_with_no_reading_of_the_last():
    knobs = Knobs(clock_mhz=400.0)
    with limited() as (plant, limiter):
        limiter.move(knobs, probe=True)
        feed(plant, limiter, [7.0] * 30)
        limiter.move(knobs, probe=True)  # a larger batch
        feed(plant, limiter, [11.0] * 4)
        assert limiter.crossed_w == pytest.approx(11.0)
        assert limiter.knobs == plant.safest


def test_a_probe_near_the_cap_is_not_stopped_by_noise():
    with limited() as (plant, limiter):
        limiter.move(Knobs(clock_mhz=500.0), probe=True)
        feed(plant, limiter, noisy(9.95, 80, seed=4))
        assert limiter.crossed_w is None
