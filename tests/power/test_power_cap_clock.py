"""Caps at moments on the clock on the wall, when that clock is set while a run is under way."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.power.test_power_cap_follower import followed
from tests.support import training_runs as made
from tests.support.sessions import OwnTimeDevice

from wattune.algorithms import open_algorithm
from wattune.cap_source import CalledCap, CapTrace
from wattune.point import Knobs
from wattune.power.cap_clock import CapInRun

NOON = datetime(2025, 6, 1, 12, tzinfo=timezone.utc)
LOW, HIGH = Knobs(clock_mhz=100.0), Knobs(clock_mhz=200.0)  # of 2 W and 4 W


class Wall:
    """A clock on the wall that runs with a device's time, and can be set."""

    def __init__(self, device, begin=NOON):
        self.device, self.begin = device, begin

    def __call__(self):
        return self.begin + timedelta(seconds=self.device.now_s())

    def set(self, seconds):
        self.begin += timedelta(seconds=seconds)


def setting(limit):
    return HIGH if limit.limit_w >= 5 else LOW if limit.limit_w >= 3 else None


def under(cap, seconds, sets=()):
    """Steps on real time under a cap, while the clock is set: ``sets`` are (seconds of the run, seconds forward)."""
    device = OwnTimeDevice()
    wall, work = Wall(device), open_algorithm("backprop", made.workload(), 32).work()
    acts = [(at_s, partial(wall.set, forward_s)) for at_s, forward_s in sets]
    return followed(cap, work, seconds, device, choose=setting, acts=acts, clock=wall)


def at(seen, time_s):
    return next((setting, limit_w) for now_s, setting, limit_w in seen if now_s >= time_s)


CAPS = CapTrace(times_s=(0.0, 60.0, 120.0), caps_w=(6.0, 3.5, 6.0), begin=NOON)


def test_a_clock_set_forward_brings_the_cap_of_the_present_moment():
    seen, _, run = under(CAPS, 30.0, sets=[(10.0, 60.0)])
    assert at(seen, 9.0) == (HIGH, 6.0)
    assert at(seen, 14.0) == (LOW, 3.5)
    assert run.meter.figures().above_cap_s <= 1.0  # nobody announced it: at most one window


def test_a_clock_set_back_never_takes_the_run_back():
    seen, follower, _ = under(CAPS, 90.0, sets=[(70.0, -65.0)])
    assert at(seen, 65.0) == (LOW, 3.5)
    assert at(seen, 71.0) == (HIGH, 6.0)  # it is 12:00:06 again
    times_s = [one.time_s for one in follower.intervals]
    assert times_s == sorted(times_s)
    assert all(earlier[0] < later[0] for earlier, later in pairwise(seen))


def test_seconds_and_callables_do_not_mind_the_clock():
    for cap in (CapTrace(times_s=(0.0, 60.0), caps_w=(6.0, 3.5)), CalledCap(cap_w=lambda time_s: 6.0)):
        seen, _, _ = under(cap, 15.0, sets=[(5.0, 100.0)])
        assert at(seen, 14.0) == (HIGH, 6.0)


@given(st.lists(st.floats(-1e6, 1e6), max_size=20), st.floats(0.0, 1e6))
def test_the_time_of_a_bound_cap_is_that_of_the_wall_whatever_it_does(jumps_s, began_s):
    device = OwnTimeDevice()
    wall = Wall(device, NOON + timedelta(seconds=began_s))
    clock = CapInRun(CAPS, is_virtual=False, clock=wall)
    clock.begin(0.0)
    for jump_s in jumps_s:
        device.wait(1.0)
        wall.set(jump_s)
        clock.look(device.now_s)
        expected_s = max(0.0, (wall() - NOON).total_seconds())
        assert clock.cap_s(device.now_s()) == pytest.approx(expected_s, abs=1e-3)


def test_a_thread_that_waited_between_the_two_times_learns_nothing_from_them():
    device = OwnTimeDevice()
    wall = Wall(device)
    clock = CapInRun(CAPS, is_virtual=False, clock=lambda: (device.wait(30.0), wall())[1])
    clock.begin(0.0)
    before_s = clock.cap_s(100.0)
    clock.look(device.now_s)
    assert clock.cap_s(100.0) == before_s
