"""A capped run on simulated boards: what ends it, what it leaves behind, and what a later run starts from."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from tests.support import training_runs as made

from wattune.algorithms import open_algorithm
from wattune.cap import SensorLimit
from wattune.devices import Fault, SimulatedDevice, builtin_board
from wattune.errors import DeviceUnavailable, SafetyStop, SensorError
from wattune.point import Knobs
from wattune.power.capped_run import CappedRun
from wattune.power.limiter import PowerLimiter
from wattune_agent.cap_guard import HEAT_PATIENCE_S, PATIENCE_S

LOST = Fault(kind="dropout", time_s=1.0, duration_s=1e6)


@pytest.fixture(scope="module")
def work():
    """One step of a small model, at the batch size that draws most."""
    return open_algorithm("backprop", made.workload(), 32).work()


def steps(run, work, seconds):
    """Steps without a check in between, for so many seconds of the device's time."""
    end_s = run.device.now_s() + seconds
    while run.device.now_s() < end_s:
        with run.device.step(work):
            pass


def test_the_first_reading_above_the_cap_ends_a_probe_at_the_safest_setting(work):
    device, heard = made.nano(), []
    with CappedRun(
        device, SensorLimit(4.0), Knobs(clock_mhz=614.4), on_reading=lambda _, power_w: heard.append(power_w)
    ) as run:
        run.limiter.move(Knobs(clock_mhz=614.4), probe=True)
        with run.metered() as meter:
            steps(run, work, 2.0)
        assert run.limiter.crossed_w > 4.0
        assert max(heard) <= 4.0  # the reading that ended it is not of the probe
        assert [event.action for event in run.limiter.events] == ["down"]
        assert run.limiter.knobs == device.current() == device.safest
    assert device.current() == device.combinations()[-1]
    assert meter.figures().readings_above_cap >= 1


def test_readings_from_before_are_not_held_against_a_probe(work):
    device = made.nano()
    with device.at(Knobs(clock_mhz=614.4)), device.step(work):
        pass
    with CappedRun(device, SensorLimit(3.5), device.safest) as run:
        run.limiter.move(device.safest, probe=True)
        with run.metered(is_calm=False) as meter:
            assert run.limiter.quiet_s == pytest.approx(device.sensor.settle_s)
            device.wait(run.limiter.quiet_s)
            assert run.limiter.quiet_s == 0
        assert meter.figures().readings > 0
        assert run.limiter.crossed_w is None


@pytest.mark.parametrize("cap_w", [None, 5.0])
def test_a_probe_whose_sensor_is_lost_is_brought_to_the_safest_setting_and_fails(work, cap_w):
    device = made.nano(faults=[LOST])
    with CappedRun(device, SensorLimit(cap_w), Knobs(clock_mhz=614.4)) as run:
        run.limiter.move(Knobs(clock_mhz=614.4), probe=True)
        with pytest.raises(SensorError, match="gives no reading"), run.metered():
            steps(run, work, 5.0)
        assert device.current() == device.safest
        assert [event.kind for event in run.monitor.events] == ["sensor lost"]
        assert run.monitor.events[0].text.endswith(f"set to the lowest, {device.safest['clock_mhz']:g}")


def test_once_the_sensor_is_lost_nothing_raises_the_setting_again(work):
    device = made.nano(faults=[LOST])
    with CappedRun(device, SensorLimit(5.0), Knobs(clock_mhz=614.4)) as run:
        run.start()
        run.check()
        run.limiter.begin_evaluation()
        steps(run, work, 5.0)
        run.limiter.end_evaluation()
        run.limiter.move(Knobs(clock_mhz=537.6))
        assert run.limiter.knobs == device.current() == device.safest
        with pytest.raises(SafetyStop, match="stopped responding, so the cap can no longer be enforced"):
            run.check()
    assert device.current() == device.combinations()[-1]


def test_a_reading_that_is_not_a_number_is_no_reading_below_the_cap(work, monkeypatch):
    device = made.nano()
    monkeypatch.setattr(device, "power_w", lambda: math.nan)
    with CappedRun(device, SensorLimit(5.0), Knobs(clock_mhz=614.4)) as run:
        with pytest.raises(DeviceUnavailable, match="reads nan, which is not a power"), run.metered():
            steps(run, work, 2.0)
    assert device.current() == device.combinations()[-1]


def test_a_run_starts_from_the_state_of_another(work):
    fault = Fault(kind="power", time_s=2.0, duration_s=1.0, gain=1.5)
    whole, first, second = (made.nano(faults=[fault], noise_w=0.03, seed=2) for _ in range(3))
    with CappedRun(whole, SensorLimit(4.6), Knobs(clock_mhz=614.4)) as run:
        run.start()
        steps(run, work, 3.0)
        steps(run, work, 20.0)
        expected, events = run.meter.figures(), run.limiter.events
    assert len(events) >= 2
    with CappedRun(first, SensorLimit(4.6), Knobs(clock_mhz=614.4)) as run:
        run.start()
        steps(run, work, 3.0)
        state = json.loads(json.dumps(run.state_dict(), allow_nan=False))
    with CappedRun(second, SensorLimit(4.6), Knobs(clock_mhz=614.4)) as run:
        run.start(state)
        assert second.current() == run.limiter.knobs < Knobs(clock_mhz=614.4)
        steps(run, work, 20.0)
        assert run.meter.figures() == expected
        assert run.limiter.events == events


def test_a_board_that_cannot_stay_below_the_cap_is_stopped_and_may_be_resumed(work):
    device = made.nano()
    with CappedRun(device, SensorLimit(3.0), Knobs(clock_mhz=153.6)) as run:
        run.start()
        run.check()
        steps(run, work, 15.0)
        with pytest.raises(SafetyStop, match="W at the lowest setting, above the cap of 3 W"):
            run.check()
        state = run.state_dict(regained=True)
    with CappedRun(device, SensorLimit(6.0), Knobs(clock_mhz=153.6)) as run:
        run.start({**state, "device": None})
        run.check()


def test_a_run_that_keeps_its_setting_takes_over_the_figures_and_the_events_alone(work):
    """As a session does, which moves the run itself and may have another cap."""
    first, second = made.nano(), made.nano()
    with CappedRun(first, SensorLimit(4.0), Knobs(clock_mhz=614.4)) as run:
        run.start()
        steps(run, work, 3.0)
        figures, events, state = run.meter.figures(), run.limiter.events, run.state_dict()
    assert events
    state["guard"] |= {"stopped": True, "over_s": 100.0}
    with CappedRun(second, SensorLimit(3.0), second.safest) as run:
        run.start(json.loads(json.dumps(state, allow_nan=False)), keep_setting=True)
        assert run.limiter.knobs == run.limiter.top == second.current() == second.safest
        assert run.limiter.quiet_s == pytest.approx(second.sensor.settle_s)
        run.check()
        assert (run.meter.figures().time_s, run.meter.figures().energy_j) == (figures.time_s, figures.energy_j)
        assert run.limiter.events == events


class Shared(SimulatedDevice):
    """A board whose agent another client may tell a cap."""

    set_cap_w = None


def test_a_lower_cap_of_another_client_is_held_until_that_ends(work):
    device = Shared(builtin_board("jetson-nano"))
    with CappedRun(device, SensorLimit(6.0), Knobs(clock_mhz=614.4)) as run:
        run.start()
        for set_w, is_lower in ((None, False), (4.0, True), (8.0, False), (4.0, True), (None, False)):
            device.set_cap_w = set_w
            steps(run, work, 60.0)
            assert (device.current()["clock_mhz"] < 614.4) == is_lower
            run.move_cap(run.limit)
            assert (run.limiter.limit.limit_w < 6.0) == is_lower
            run.check()


class Heated(SimulatedDevice):
    """A board whose temperature the test sets."""

    temperature_c = 40.0

    def conditions(self):
        return dataclasses.replace(super().conditions(), temperature_c=self.temperature_c)


@pytest.mark.parametrize(
    ("power_w", "temperature_c", "patience_s"),
    [(6.0, 40.0, PATIENCE_S), (3.0, 95.0, HEAT_PATIENCE_S), (3.0, 40.0, None)],
    ids=["above the cap", "too hot", "below both limits"],
)
def test_evaluations_do_not_restart_the_patience_at_the_lowest_setting(power_w, temperature_c, patience_s):
    """Readings ten times a second, with an evaluation every two seconds."""
    device = Heated(builtin_board("jetson-nano"))
    device.temperature_c = temperature_c
    stopped_s = None
    with CappedRun(device, SensorLimit(5.0, max_temp_c=90.0), device.safest) as run:
        for tenth in range(1, 1000):
            if tenth % 20 == 0:
                run.limiter.begin_evaluation()
            if tenth % 20 == 5:
                run.limiter.end_evaluation()
            run.limiter(tenth / 10, power_w)
            if run.limiter.stopped is not None:
                stopped_s = tenth / 10
                break
    assert stopped_s == (None if patience_s is None else pytest.approx(patience_s, abs=1.5))


@pytest.mark.parametrize(
    ("before_w", "after_w", "holds"), [(5.0, 5.0, True), (5.0, 6.0, True), (5.0, 4.0, False), (None, 4.0, False)]
)
@pytest.mark.parametrize("loads", [PowerLimiter.remember, PowerLimiter.load_state_dict])
def test_a_setting_of_evaluations_is_not_taken_over_under_a_lower_cap(before_w, after_w, holds, loads):
    device = made.nano()
    with CappedRun(device, SensorLimit(before_w), device.safest) as run:
        state = {**run.limiter.state_dict(), "reached": dict(device.combinations()[3])}
    with CappedRun(device, SensorLimit(after_w), device.safest) as run:
        loads(run.limiter, json.loads(json.dumps(state, allow_nan=False)))
        assert run.limiter.state_dict()["reached"] == device.combinations()[3 if holds else 0]


def test_an_evaluation_lowers_the_first_of_several_knobs_alone():
    """At the lowest CPU clock it would take minutes."""
    device = SimulatedDevice(builtin_board("jetson-tx2"))
    work = Knobs(clock_mhz=930.75, memory_clock_mhz=1062.4, cpu_clock_mhz=1420.8)
    with CappedRun(device, SensorLimit(9.0), work) as run:
        run.start()
        run.limiter.begin_evaluation()
        assert device.current() == work.replace(clock_mhz=114.75)
        run.limiter.end_evaluation()
        assert device.current() == work
