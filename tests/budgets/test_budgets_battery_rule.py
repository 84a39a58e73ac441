"""The rule of a battery: what it grants and sets aside, and that it holds the reserve under the sun it counts on."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattune.budgets.battery_rule import (
    CHARGING,
    COUNTED,
    FULL,
    LOOK_S,
    BatteryRule,
    PowerPoint,
    SunMeter,
)
from wattune.errors import InputError

HOUR_S, WH = 3600.0, 3600.0
SLOW, EFFICIENT, FAST = PowerPoint(50.0, 3.5), PowerPoint(90.0, 4.0), PowerPoint(100.0, 5.0)
REST_W = 1.4


def sky_w(time_s):
    """A panel of 20 W whose day begins at 0 and lasts 12 hours."""
    return max(0.0, 20.0 * math.sin(2 * math.pi * time_s / (24 * HOUR_S)))


def rule(mode="strict", capacity_wh=100.0, sky=sky_w, **changes):
    fields = {"waiting_w": REST_W, "capacity_j": capacity_wh * WH, "reserve_j": 0.2 * capacity_wh * WH, **changes}
    return BatteryRule((SLOW, FAST, EFFICIENT), sky_w=sky, mode=mode, **fields)


def test_points_that_another_one_beats_are_not_used():
    assert rule().points == (EFFICIENT, FAST)
    slower_and_hungrier = PowerPoint(80.0, 6.0)
    assert BatteryRule((FAST, slower_and_hungrier), waiting_w=1, capacity_j=10, reserve_j=1).points == (FAST,)


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 50)), min_size=1, max_size=12))
def test_the_points_go_from_the_most_efficient_to_the_fastest(pairs):
    points = [PowerPoint(*pair) for pair in pairs]
    used = BatteryRule(points, waiting_w=1, capacity_j=10, reserve_j=1).points
    assert used[-1].rate == max(point.rate for point in points)
    assert used[0].rate / used[0].power_w == max(point.rate / point.power_w for point in points)
    assert list(used) == sorted(used)


@given(st.floats(0, 48 * HOUR_S))
def test_the_floor_holds_the_reserve_and_more_if_it_counts_on_less(time_s):
    strict, soon = rule().floor_j(time_s), rule("soon").floor_j(time_s)
    assert rule().reserve_j <= soon <= strict


def test_the_floor_at_dusk_is_what_rest_takes_until_the_sun_carries_it():
    dusk_s = 12 * HOUR_S
    carried_s = next(s for s in range(24 * 3600, 36 * 3600, 60) if 0.15 * sky_w(s) >= REST_W)
    least_wh = (carried_s - dusk_s) * REST_W / WH
    night_wh = (rule("soon").floor_j(dusk_s) - rule().reserve_j) / WH
    assert 0.9 * least_wh < night_wh < least_wh
    without_sun = rule(sky=lambda time_s: 0.0)
    assert without_sun.floor_j(0.0) - without_sun.reserve_j == pytest.approx(24 * HOUR_S * REST_W)


def grant(one, charge_wh, *, time_s=0.0, sun_w=0.0, samples_left=1e9):
    return one.decide(time_s, charge_wh * WH, sun_w=sun_w, samples_left=samples_left)


def test_each_clause_of_the_rule():
    assert grant(rule(), 90.0) == (EFFICIENT, "most progress per joule")
    assert grant(rule(), 90.0, sun_w=6.0) == (FAST, "the sun carries it")
    assert grant(rule(), 99.0) == (FAST, "the battery is full")
    assert grant(rule(), 90.0, samples_left=100 * HOUR_S).why == "can finish without a pause"
    paused = grant(rule(), 21.0)
    assert paused.point is None
    assert paused.why.startswith("21 % charge, of which the reserve and the time without sun need")


@pytest.mark.parametrize(
    ("hours", "granted"),
    [
        (1.9, (FAST, "can finish without a pause")),
        (2.1, (EFFICIENT, "can finish without a pause")),
        (3.0, (EFFICIENT, "most progress per joule")),
    ],
)
def test_the_fastest_point_that_can_finish_is_taken(hours, granted):
    one = rule(sky=lambda time_s: 0.0)
    # 10 Wh above the floor are 2 hours at 5 W, or 2.5 hours at 4 W, which is 1.125 times as much work.
    charge_wh = one.floor_j(0.0) / WH + 10.0
    assert grant(one, charge_wh, samples_left=hours * HOUR_S * FAST.rate) == granted


def test_it_neither_flips_between_points_nor_between_pause_and_training():
    one = rule()
    grant(one, 90.0, time_s=0.0, sun_w=6.0)
    assert grant(one, 90.0, time_s=60.0).point == FAST
    assert grant(one, 90.0, time_s=600.0).point == EFFICIENT
    floor_wh = one.floor_j(900.0) / WH
    assert grant(one, floor_wh, time_s=900.0).point is None
    assert grant(one, floor_wh + 0.5, time_s=960.0).point is None
    assert grant(one, floor_wh + 2.0, time_s=1020.0).point == EFFICIENT


@settings(deadline=None, max_examples=30)
@given(
    mode=st.sampled_from(["strict", "soon"]),
    begin_h=st.integers(0, 23),
    start=st.floats(0.0, 1.0),
    clouds=st.lists(st.floats(0.0, 1.0), min_size=48, max_size=48),
)
def test_the_reserve_is_held_whenever_the_sun_gives_what_is_counted_on(mode, begin_h, start, clouds):
    begin_s = begin_h * HOUR_S

    def from_begin_w(time_s):
        return sky_w(time_s + begin_s)

    one = rule(mode, sky=from_begin_w)
    least = max(COUNTED[mode].first_day, COUNTED[mode].later)
    floor_j = one.floor_j(0.0)
    charge_j = floor_j + start * (one.capacity_j - floor_j)
    trained_s = 0.0
    for slot in range(48 * 12):
        time_s = slot * LOOK_S
        share = least + (1 - least) * clouds[slot // 12]
        granted = one.decide(time_s, charge_j, sun_w=0.0, samples_left=1e9).point
        net_w = share * from_begin_w(time_s + LOOK_S / 2) - (REST_W if granted is None else granted.power_w)
        charge_j = min(one.capacity_j, charge_j + LOOK_S * (CHARGING * net_w if net_w > 0 else net_w))
        trained_s = trained_s if granted is None else time_s
        # What is set aside lasts for so long, from the last look that granted something.
        if time_s < trained_s + COUNTED[mode].ahead_s:
            assert charge_j >= one.reserve_j - 1.0


def test_a_reserve_that_rest_alone_crosses_is_refused():
    at_dusk_s = 12 * HOUR_S
    with pytest.raises(InputError, match=r"rest alone crosses the reserve: 1.4 W for 12.. h until the sun carries it"):
        rule().check(at_dusk_s, 25.0 * WH)
    rule().check(at_dusk_s, 40.0 * WH)


def test_a_battery_that_never_suffices_for_training_is_refused():
    with pytest.raises(InputError, match="the battery is too small to train from: reserve and night budget take"):
        rule(capacity_wh=20.0).check(0.0, 20.0 * WH)
    with pytest.raises(InputError, match="the reserve"):
        rule(reserve_j=100.0 * WH)


@given(st.floats(0, 30), st.floats(1, 20))
def test_a_constant_sun_is_found_from_charge_and_energy(sun_w, board_w):
    meter = SunMeter()
    assert meter.watts == 0
    net_w = sun_w - board_w
    for minute in range(40):
        time_s = 60.0 * minute
        gained_j = time_s * (CHARGING * net_w if net_w > 0 else net_w)
        meter.add(time_s, 1e6 + gained_j, board_w * time_s)
    assert meter.watts == pytest.approx(sun_w, abs=1e-6)


def test_a_gauge_in_percent_needs_longer():
    meter, capacity_j = SunMeter(), 80 * WH
    for minute in range(60):
        time_s = 60.0 * minute
        exact_j = 0.5 * capacity_j + time_s * CHARGING * 5.0
        meter.add(time_s, round(exact_j / capacity_j, 2) * capacity_j, 5.0 * time_s)
    assert meter.watts == pytest.approx(10.0, abs=1.5)
    other = SunMeter()
    other.load_state_dict(meter.state_dict())
    assert other.watts == meter.watts


def test_a_full_battery_may_always_train_again():
    assert grant(rule(), 100.0 * FULL).point is not None
