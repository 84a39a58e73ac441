from __future__ import annotations

import math
import random
from collections import deque
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.cap import SensorLimit
from wattune.devices.base import Device, Knob, Sensor
from wattune.point import Knobs
from wattune.power.limiter import PowerLimiter
from wattune_agent.cap_level import PEAK_S

CLOCKS = (100.0, 200.0, 300.0, 400.0, 500.0)


class Plant(Device):
    """A board whose power is a table: enough to be sensed and set."""

    name, mode, kind = "plant", "", "simulated"
    memory_bytes, data_types, executes_steps = None, frozenset({"fp32"}), False

    def __init__(self, powers=(2.0, 2.5, 3.0, 3.5, 4.0), sensor=None, clocks=CLOCKS):
        self.knobs = (Knob("clock_mhz", clocks),) if clocks else ()
        self.powers = dict(zip(clocks, powers, strict=True)) if clocks else {None: powers[0]}
        self.sensor = sensor or Sensor(rail="all")
        self.clock = clocks[-1] if clocks else None

    def now_s(self):
        return 0.0

    def power_w(self):
        return self.powers[self.clock]

    def wait(self, seconds):
        raise AssertionError("the guard does not wait")

    def step(self, work):
        raise AssertionError("the guard takes no steps")

    def current(self):
        return Knobs(clock_mhz=self.clock)

    def _apply(self, knobs):
        self.clock = knobs["clock_mhz"]

    def _snapshot(self):
        return self.clock

    def _restore(self, snapshot):
        self.clock = snapshot


@contextmanager
def guarding(plant, cap_w, planned=500.0):
    with plant.at(Knobs(clock_mhz=planned) if plant.knobs else None) as setting:
        yield PowerLimiter(plant, setting, SensorLimit(cap_w))


def actions(guard):
    return [event.action for event in guard.events]


def feed(guard, readings, *, start_s=0.0, every_s=0.1):
    for i, power_w in enumerate(readings):
        guard(start_s + i * every_s, power_w)
    return start_s + len(readings) * every_s


def test_one_noisy_reading_costs_one_step():
    plant = Plant(sensor=Sensor(rail="all", window_s=0.3, lag_s=0.2))
    with guarding(plant, 4.5) as guard:
        feed(guard, [4.4, 4.6, 4.6, 4.6, 4.2, 4.2])
        assert actions(guard) == ["down"]
        assert guard.events[0].time_s == pytest.approx(0.1)
        assert guard.events[0].setting == plant.clock == 400.0
    assert plant.clock == 500.0


def test_noise_at_the_lowest_setting_does_not_stop_training():
    noise = random.Random(1)
    with guarding(Plant(), 4.5, planned=100.0) as guard:
        feed(guard, [4.45 + noise.gauss(0, 0.1) for _ in range(20_000)])
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
