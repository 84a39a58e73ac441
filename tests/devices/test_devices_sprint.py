"""Members of a group that wait for the slowest: the value at which they draw least is found by measuring."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.device_examples import make_work, quiet

from wattune.devices import Meter, SimulatedDevice, builtin_board
from wattune.devices.group import device_group
from wattune.devices.group.sprint import LONGER, ROOM, STEPS, WINDOWS, sprint_rows, trial_readings

VALUES = tuple(100.0 + 25.0 * step for step in range(37))


def tried(rows, power_w):
    """Run a trial to its end on members whose mean power is ``power_w(member, value)``; returns its rows and result."""
    row = next(rows)
    taken = [row]
    while True:
        try:
            row = rows.send([power_w(member, value) for member, value in enumerate(row)])
        except StopIteration as end:
            return taken, end.value
        taken.append(row)


def waiting_at(rest_w):
    """Mean power at the pace of the lowest clock: running costs 1 W, computing as the cube of the clock, waiting
    ``rest_w``."""

    def power_w(member, value):
        busy = VALUES[0] / value
        return rest_w * (1 - busy) + busy * (2.0 + (value / 500.0) ** 3)

    return power_w


def test_members_that_wait_at_rest_rise_to_where_a_step_costs_least():
    power_w = waiting_at(0.5)
    _, best = tried(sprint_rows([VALUES] * 3, 1, [0, 0, 0], 20.0), power_w)
    assert best[0] == best[2] > 2 * VALUES[0]
    assert best[1] == VALUES[0]
    least_w = min(power_w(0, value) for value in VALUES)
    assert power_w(0, best[0]) < least_w + 0.1 * (power_w(0, VALUES[0]) - least_w)


def test_members_that_wait_actively_stay_at_the_lowest_value():
    rows, best = tried(sprint_rows([VALUES] * 3, 0, [0, 0, 0], 20.0), lambda member, value: 2.0 + (value / 500.0) ** 3)
    assert best == (VALUES[0],) * 3
    assert len(rows) == 3  # raised by a large step, and by a small one


@given(st.lists(st.integers(0, 1), min_size=2, max_size=5), st.floats(1.0, 2.0), st.floats(-0.5, 1.0))
def test_no_pool_comes_near_its_cap_even_if_all_power_rises_with_the_clock(pools, room, rise):
    def power_w(member, value):
        return (value / VALUES[0]) ** rise

    limit_w = room * max(pools.count(pool) for pool in pools)
    for row in tried(sprint_rows([VALUES] * len(pools), 0, pools, limit_w), power_w)[0][1:]:
        for pool in set(pools):
            drawn_w = sum(
                power_w(m, value) for m, (value, own) in enumerate(zip(row, pools, strict=True)) if own == pool
            )
            assert drawn_w <= max((1 - ROOM) * limit_w, pools.count(pool)) * (1 + 1e-9)


@given(st.floats(0.005, 5.0), st.floats(0.1, 1.0))
def test_mean_power_is_taken_over_nearly_whole_steps(step_s, window_s):
    seconds = trial_readings(step_s, window_s, 10.0) / 10.0
    least_s = max(STEPS * step_s, WINDOWS * window_s)
    assert least_s - 1e-9 <= seconds <= LONGER * (least_s + 0.1)
    assert abs(seconds / step_s - round(seconds / step_s)) * step_s <= 0.2 * least_s


def settled(group, limit_w):
    """Train at the safest setting until nothing is left to try; returns the values that were set."""
    work, rows = make_work(8, gflop=70.0), []
    with group.at(group.safest), Meter(group):
        for _ in range(2000):
            with group.step(work):
                pass
            if (is_changed := group.try_sprints(limit_w)) is None:
                return rows
            if is_changed:
                rows.append([member.current().first for member in group.members])
    raise AssertionError("the trial does not end")


def pair():
    return [SimulatedDevice(quiet(builtin_board("jetson-tx2-nx")), seed=seed) for seed in (1, 2)]


def test_a_group_draws_less_at_the_same_pace_from_then_on():
    group, work = device_group(pair()), make_work(8, gflop=70.0)
    before = group.exact_steps(work)
    lowest_w = before[group.safest].power_mean_w
    rows = settled(group, 2 * lowest_w)
    assert rows[-1][1] > rows[-1][0] == group.safest.first
    after = group.exact_steps(work)
    second = group.combinations()[1]
    assert after[second].step_s == before[second].step_s
    assert after[second].power_mean_w < 0.95 * before[second].power_mean_w
    assert after[group.safest] == before[group.safest]  # work without waiting may follow there
    assert after[group.combinations()[-1]] == before[group.combinations()[-1]]
    other = device_group(pair())
    other.load_state_dict(json.loads(json.dumps(group.state_dict())))
    assert other.exact_steps(work) == after
    assert not other.rebalance()


def test_there_is_nothing_to_try_without_room_below_the_cap():
    group, work = device_group(pair()), make_work(8, gflop=70.0)
    before = group.exact_steps(work)
    assert settled(group, 1.01 * before[group.safest].power_mean_w) == []
    assert group.exact_steps(work) == before


def test_a_trial_begins_again_after_another_setting():
    group, work = device_group(pair()), make_work(8, gflop=70.0)
    limit_w = 2 * group.exact_steps(work)[group.safest].power_mean_w
    with group.at(group.safest) as setting, Meter(group):
        is_changed = False
        while not is_changed:
            with group.step(work):
                pass
            is_changed = group.try_sprints(limit_w)
        setting.change(group.safest)
        assert [member.current() for member in group.members] == [group.safest] * 2
        setting.change(group.combinations()[2])
        assert group.try_sprints(limit_w) is None
    assert settled(group, limit_w)[-1][1] > group.safest.first


@pytest.mark.parametrize(("pools", "may"), [([0, 0], True), ([0, 1], False)])
def test_only_members_that_share_a_cap_sprint(pools, may):
    assert device_group(pair(), pools=pools).may_sprint is may
