"""A capped run of a group: the limit is that of a pool, and the figures are those of all devices."""

import json

import pytest
from tests.support.device_examples import make_work, quiet

from wattune.cap import SensorLimit
from wattune.devices import Fault, SimulatedDevice
from wattune.devices.group import device_group
from wattune.power.capped_run import CappedRun

WORK = make_work(8, gflop=20.0)


def boards(*changes):
    return [SimulatedDevice(quiet(**change)) for change in changes]


def train(run, group, steps=120):
    run.start()
    for _ in range(steps):
        with group.step(WORK):
            pass
        run.check()


@pytest.mark.parametrize(("pools", "pushed"), [([0, 0], True), ([0, 1], False)])
def test_the_limit_is_that_of_a_pool(pools, pushed):
    group, top = device_group(boards({}, {}), pools=pools), SimulatedDevice(quiet()).combinations()[-1]
    readings_w = []
    with CappedRun(group, SensorLimit(8.5), top, on_reading=lambda time_s, watts: readings_w.append(watts)) as run:
        train(run, group)
        assert (run.limiter.pushed > 0) == pushed
        figures = run.meter.figures()
    assert max(readings_w) <= 8.5 or pushed
    assert figures.power_peak_w > 8.5
    assert (figures.above_cap_s > 0) == (run.truth.figures().above_cap_s > 0) == pushed
    if pushed:
        assert group.power_w() < 8.5


def test_the_lowest_cap_that_is_set_for_a_member_holds_for_a_group_of_own_caps():
    members = boards({}, {}, {})
    assert device_group(members, pools=[0, 1, 2]).set_cap_w is None

    class Set(SimulatedDevice):
        set_cap_w = 4.0

    members += [Set(quiet())]
    assert device_group(members, pools=[0, 1, 2, 3]).set_cap_w == 4.0
    assert device_group(members, pools=[0, 1, 2, 0]).set_cap_w is None


def test_one_device_above_a_cap_of_its_own_brings_all_of_them_down():
    fault = Fault(kind="power", time_s=3.0, duration_s=4.0, gain=1.5)
    group = device_group(boards({}, {"fault": (fault,)}, {}), pools=[0, 1, 2])
    with CappedRun(group, SensorLimit(6.5), group.combinations()[-1]) as run:
        train(run, group, steps=80)
        assert run.limiter.pushed > 0
        settings = {member.current() for member in group.members}
        assert settings == {run.limiter.knobs}
        assert all(event.power_w > 6.5 for event in run.limiter.events[:1])
        assert all(event.power_w < 3 * 5.0 for event in run.limiter.events)
    assert {member.current() for member in group.members} == {group.combinations()[-1]}


def test_a_run_of_a_group_continues_from_its_state():
    def led(steps, state=None):
        group = device_group(boards({}, {}))
        with CappedRun(group, SensorLimit(8.0), group.combinations()[-1]) as run:
            run.start(json.loads(json.dumps(state)) if state else None)
            for _ in range(steps):
                with group.step(WORK):
                    pass
            group.rebalance()
            return run.state_dict(), run.meter.figures(), run.truth.figures()

    whole = led(40)
    first = led(20)
    again = led(20, first[0])
    assert again[1].energy_j == pytest.approx(whole[1].energy_j)
    assert again[2].time_s == pytest.approx(whole[2].time_s)
    assert again[2].energy_j == pytest.approx(whole[2].energy_j)
    assert again[2].above_cap_s == pytest.approx(whole[2].above_cap_s) != 0
