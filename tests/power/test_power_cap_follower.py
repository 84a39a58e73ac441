"""The follower on a simulated board: when settings and limits change, and what a window is compared with."""

from __future__ import annotations

import pytest
from tests.support import training_runs as made

from wattune.algorithms import open_algorithm
from wattune.cap import SensorLimit
from wattune.cap_source import CalledCap, CapTrace
from wattune.point import Knobs
from wattune.power.cap_follower import CapFollower, lead_s
from wattune.power.capped_run import CappedRun

LOW, HIGH = Knobs(clock_mhz=76.8), Knobs(clock_mhz=921.6)


@pytest.fixture(scope="module")
def work():
    return open_algorithm("backprop", made.workload(), 32).work()


def setting(limit):
    """The highest setting from 5 W on, the lowest from 4 W on."""
    return HIGH if limit.limit_w >= 5 else LOW if limit.limit_w >= 4 else None


def followed(cap, work, seconds, device=None, *, choose=setting, acts=(), **options):
    """Steps under a cap for so many seconds: (seconds of the run, setting, limit) before each of them; ``acts``: what
    happens at which of these seconds."""
    device, seen, left = device or made.nano(), [], list(acts)
    run = CappedRun(device, SensorLimit(window_s=1.0), device.safest)
    follower = CapFollower(run, cap, choose, **options)
    run.follow(follower)
    with run:
        run.start()
        with run.following():
            while run.meter.elapsed_s < seconds:
                if left and run.meter.elapsed_s >= left[0][0]:
                    left.pop(0)[1]()
                run.hold(0.1)
                seen.append((run.meter.elapsed_s, run.limiter.top, run.limit.limit_w))
                with device.step(work):
                    pass
    return seen, follower, run


def test_the_control_interval_is_that_of_window_and_sensor():
    sensor = made.nano().sensor
    assert lead_s(sensor, 1.0) == pytest.approx(1.0 + sensor.settle_s + 0.1)
    assert lead_s(sensor, None) == pytest.approx(sensor.settle_s + 0.1)


def test_the_setting_comes_before_an_announced_lowering_and_the_limit_at_its_time(work):
    seen, _, run = followed(CapTrace(times_s=(0.0, 5.0, 8.0), caps_w=(6.0, 4.5, 6.0)), work, 10.0)
    early_s = 5.0 - lead_s(run.device.sensor, 1.0)
    for time_s, setting, limit_w in seen:
        if time_s < early_s - 0.1 or time_s > 8.2:
            assert (setting, limit_w) == (HIGH, 6.0)
        elif early_s + 0.2 < time_s < 4.9:
            assert (setting, limit_w) == (LOW, 6.0)
        elif 5.2 < time_s < 7.9:
            assert (setting, limit_w) == (LOW, 4.5)


def test_steps_do_not_begin_before_a_pause_and_not_in_it(work):
    seen, follower, run = followed(CapTrace(times_s=(0.0, 5.0, 8.0), caps_w=(6.0, 0.0, 6.0)), work, 10.0)
    latest_s = 5.0 - lead_s(run.device.sensor, 1.0) - 0.1
    assert all(time_s < latest_s + 0.01 or time_s >= 8.0 for time_s, _, _ in seen)
    assert any(time_s < latest_s for time_s, _, _ in seen)
    assert any(time_s >= 8.0 for time_s, _, _ in seen)
    assert follower.paused_s == pytest.approx(8.0 - latest_s, abs=0.3)


def test_a_rest_above_a_cap_that_allows_nothing_is_counted_but_not_answered(work):
    cap = CapTrace(times_s=(0.0, 5.0, 20.0), caps_w=(6.0, 1.0, 6.0))
    _, follower, run = followed(cap, work, 22.0)
    assert run.limiter.stopped is None  # though it rests above 1 W for longer than any patience
    assert run.limiter.events == ()
    paused = [one for one in follower.intervals if one.asked_w == 1.0]
    assert sum(one.above_cap_s for one in paused) == pytest.approx(15.0, abs=1.5)
    assert run.meter.figures().above_cap_s == pytest.approx(sum(one.above_cap_s for one in follower.intervals))


def test_the_error_of_a_callable_is_raised_by_the_next_step(work):
    def cap_w(time_s):
        if time_s > 2:
            raise ZeroDivisionError
        return 6.0

    device = made.nano()
    with pytest.raises(ZeroDivisionError):
        followed(CalledCap(cap_w=cap_w), work, 5.0, device)
    assert device.current() == device.combinations()[-1]
