"""The limiter on a board whose power is a table, with and without a window."""

from __future__ import annotations

import math
import random
from collections import deque
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.real_time_device import TwoClocks

from wattune.cap import SensorLimit
from wattune.devices.base import Device, Knob, Sensor
from wattune.point import Knobs
from wattune.power.limiter import PowerLimiter
from wattune_agent.cap_level import PEAK_S

CLOCKS = (100.0, 200.0, 300.0, 400.0, 500.0)
CAP_W, NOISE_W = 10.0, 0.2
WINDOWED = Sensor(rail="all", period_s=0.1, window_s=0.1, noise_w=NOISE_W)


class Plant(TwoClocks, Device):
    """A board whose power is a table: enough to be sensed and set."""

    knobs = (Knob("clock_mhz", CLOCKS),)

    def __init__(self, powers=(2.0, 2.5, 3.0, 3.5, 4.0), sensor=None):
        self.powers = dict(zip(CLOCKS, powers, strict=True))
        self.sensor = sensor or Sensor(rail="all")
        self.clock_mhz, self.time_s = CLOCKS[-1], 0.0

    def now_s(self):
        return self.time_s

    def power_w(self):
        return self.powers[self.clock_mhz]

    def wait(self, seconds):
        raise AssertionError("the guard does not wait")

    def step(self, work):
        raise AssertionError("the guard takes no steps")


@contextmanager
def guarding(plant, cap_w, planned=500.0, window_s=None):
    with plant.at(Knobs(clock_mhz=planned)) as setting:
        yield PowerLimiter(plant, setting, SensorLimit(cap_w, window_s=window_s))


@contextmanager
def limited(window_s=1.0):
    plant = Plant((6.0, 7.0, 8.0, 9.0, 11.0), WINDOWED)
    with guarding(plant, CAP_W, window_s=window_s) as limiter:
        yield plant, limiter


def actions(guard):
    return [event.action for event in guard.events]


def feed(plant, limiter, readings_w):
    for power_w in readings_w:
        plant.time_s += 0.1
        limiter(plant.time_s, power_w)


def test_one_noisy_reading_costs_one_step():
    plant = Plant(sensor=Sensor(rail="all", window_s=0.3, lag_s=0.2))
    with guarding(plant, 4.5) as guard:
        feed(plant, guard, [4.4, 4.6, 4.6, 4.6, 4.2, 4.2])
        assert actions(guard) == ["down"]
        assert guard.events[0].time_s == pytest.approx(0.2)
        assert guard.events[0].setting == plant.clock_mhz == 400.0
    assert plant.clock_mhz == 500.0


def test_noise_at_the_lowest_setting_does_not_stop_training():
    noise, plant = random.Random(1), Plant()
    with guarding(plant, 4.5, planned=100.0) as guard:
        feed(plant, guard, [4.45 + noise.gauss(0, 0.1) for _ in range(20_000)])
        assert actions(guard) == ["at lowest"]
        assert not guard.stopped


def changes_allowed(time_s, levels):
    """At most one visit of a higher setting each ``PEAK_S``, an up and a down; and one way through the ladder."""
    return levels + 2 * time_s / PEAK_S


@pytest.mark.slow
@given(
    seed=st.integers(0, 2**32),
    headroom_sd=st.floats(-1.0, 3.0),
    noise_w=st.floats(0.005, 0.3),
    period_s=st.sampled_from([0.0, 0.1, 0.42]),
    window_s=st.sampled_from([0.0, 0.3, 1.0]),
    lag_s=st.sampled_from([0.0, 0.2, 1.0]),
    step_w=st.floats(0.05, 0.5),
)
def test_noise_and_lag_cannot_make_it_oscillate(seed, headroom_sd, noise_w, period_s, window_s, lag_s, step_w):
    cap_w, seconds, rate_hz = 4.5, 2000, 10
    top_w = cap_w - headroom_sd * noise_w
    powers = [top_w - step_w * (len(CLOCKS) - 1 - i) for i in range(len(CLOCKS))]
    sensor = Sensor(rail="all", period_s=period_s, window_s=window_s, lag_s=lag_s, noise_w=noise_w)
    plant, noise = Plant(powers, sensor), random.Random(seed)
    above, seen = 0, deque(maxlen=round((window_s + lag_s) * rate_hz) + 1)
    with guarding(plant, cap_w) as guard:
        fresh_s, reading = -math.inf, 0.0
        for i in range(seconds * rate_hz):
            time_s = i / rate_hz
            seen.append(plant.power_w())
            if time_s >= fresh_s + period_s:
                window = list(seen)[: max(1, round(window_s * rate_hz))]
                fresh_s, reading = time_s, sum(window) / len(window) + noise.gauss(0, noise_w)
            above += reading > cap_w
            guard(time_s, reading)
        events = guard.events
        assert not guard.stopped or powers[0] > cap_w - noise_w
    changes = [e for e in events if e.action != "at lowest"]
    assert len(changes) <= changes_allowed(seconds, len(CLOCKS))
    assert all(e.power_w > cap_w for e in events if e.action == "down")
    # Where one step down is enough for the noise, it is nearly always enough for the readings.
    if headroom_sd * noise_w + step_w >= 4 * noise_w:
        assert above < 0.01 * seconds * rate_hz


# ------------------------------------------------------------------------------------------------------- with a window


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
