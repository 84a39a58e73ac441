"""The rule by which a clock follows a cap."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattune_agent.cap_guard import COOL_BY_C, GAP_S, HEAT_PATIENCE_S, HEAT_WAIT_S, PATIENCE_S, CapGuard
from wattune_agent.cap_level import CapLevel, Sensing
from wattune_agent.power_log import PowerTable

CLOCKS = (100.0, 200.0, 300.0, 400.0, 500.0)


class Clock:
    def __init__(self):
        self.mhz = None

    def __call__(self, mhz):
        self.mhz = mhz


def made(value=500.0, cap_w=4.5, settle_s=0.0, max_temp_c=None, clocks=CLOCKS, free_at=None, change=None):
    clock = Clock()
    clock.mhz = value
    ladder = [mhz for mhz in clocks if value is not None and mhz <= value]
    level = CapLevel(PowerTable.guess(ladder or [1.0]), cap_w, Sensing(0.0, lag_s=settle_s))
    return CapGuard(ladder, change or clock, level, max_temp_c, free_at=free_at), clock


def feed(guard, readings, start_s=0.0, temperature_c=None):
    for i, power_w in enumerate(readings):
        guard(start_s + i / 10, power_w, temperature_c)


def actions(guard):
    return [event["action"] for event in guard.events]


def test_quiet_at_the_cap_and_without_one():
    guard, clock = made()
    feed(guard, [4.5] * 500)
    unlimited, _ = made(cap_w=None)
    feed(unlimited, [100.0] * 500, temperature_c=200.0)
    assert guard.events == unlimited.events == []
    assert guard.has_read
    assert unlimited.has_read
    assert clock.mhz == guard.value == 500.0


def test_a_reading_above_the_cap_lowers_the_setting_as_far_as_the_table_asks_for():
    guard, clock = made()
    feed(guard, [4.4, 4.6, 4.0])
    assert guard.events == [{"time_s": 0.1, "power_w": 4.6, "action": "down", "setting": 400.0}]
    assert clock.mhz == guard.value == 400.0


def test_what_an_old_reading_shows_is_not_paid_for_twice():
    guard, clock = made(settle_s=0.25)
    feed(guard, [5.0] * 3)
    assert [event["time_s"] for event in guard.events] == [0.0]
    assert clock.mhz == 400.0


def test_a_lasting_excess_ends_within_a_few_readings_however_many_clocks_there_are():
    """129 W at 1575 MHz, 25 W of them whatever the clock, under a cap of 60 W, in steps of 7.5 MHz."""
    clocks = tuple(315.0 + 7.5 * i for i in range(169))
    guard, clock = made(1575.0, 60.0, clocks=clocks)
    readings = 0
    while (power_w := 25.0 + 104.0 * (clock.mhz / 1575.0) ** 2) > 60.0:
        guard(readings / 10, power_w)
        readings += 1
    assert readings <= 4
    assert clock.mhz > 0.98 * 1575.0 * 60.0 / 129.0  # no lower than the ratio asks for


def test_a_board_that_is_not_pinned_is_pinned_at_the_lowest_before_the_work_has_to_stop():
    guard, clock = made(free_at=100.0)
    guard(0.0, 5.0)
    assert (clock.mhz, actions(guard)) == (100.0, ["down"])
    feed(guard, [5.0] * 102, 0.1)
    assert guard.stopped
    assert actions(guard) == ["down", "at lowest"]


def test_up_again_step_by_step_but_never_beyond_the_first_setting():
    guard, clock = made(400.0)
    for i in range(1000):
        guard(i / 10, 1.3 * clock.mhz / 100 if i < 100 else 0.7 * clock.mhz / 100)
    assert actions(guard) == ["down", "up"]
    assert clock.mhz == 400.0


@pytest.mark.parametrize(
    ("value", "clocks", "lowest"), [(100.0, CLOCKS, 100.0), (None, (), None), (None, CLOCKS, None)]
)
def test_at_the_lowest_the_work_has_to_stop_after_the_patience(value, clocks, lowest):
    guard, _ = made(value, clocks=clocks)
    feed(guard, [5.0] * int(10 * PATIENCE_S))
    assert not guard.stopped
    feed(guard, [5.0] * 3, PATIENCE_S)
    assert guard.stopped
    assert actions(guard) == ["at lowest"]
    assert guard.events[0]["setting"] == lowest


def test_too_hot_is_answered_in_the_times_that_heat_needs():
    guard, clock = made(max_temp_c=80.0)
    feed(guard, [1.0] * 250, temperature_c=80.5)
    assert [e["time_s"] for e in guard.events] == pytest.approx([0.0, HEAT_WAIT_S, 2 * HEAT_WAIT_S])
    assert guard.events[0]["temperature_c"] == 80.5
    assert clock.mhz == 200.0
    # Power above the cap is answered as ever meanwhile.
    guard(25.1, 7.0, 80.5)
    assert clock.mhz == 100.0


def test_not_up_again_before_it_is_cool_nor_while_nobody_knows():
    guard, clock = made(max_temp_c=80.0)
    guard(0.0, 1.0, 81.0)
    feed(guard, [1.0] * 1000, 0.1, 80.0 - COOL_BY_C)
    feed(guard, [1.0] * 1000, 100.1, None)
    assert clock.mhz == 400.0
    feed(guard, [1.0] * 120, 200.1, 80.0 - COOL_BY_C - 0.1)
    assert clock.mhz == 500.0


def test_heat_alone_at_the_lowest_has_the_longer_patience():
    guard, _ = made(100.0, max_temp_c=80.0)
    feed(guard, [1.0] * int(10 * HEAT_PATIENCE_S), temperature_c=90.0)
    assert not guard.stopped
    feed(guard, [1.0] * 5, HEAT_PATIENCE_S, 90.0)
    assert guard.stopped


def test_a_silence_between_two_readings_is_not_held_against_the_work():
    for settle_s, elapsed_s, counted_s in ((0.0, 60.0, GAP_S), (5.0, 60.0, 5.0), (0.0, 0.5, 0.5)):
        guard, _ = made(100.0, settle_s=settle_s)
        guard(0.0, 5.0)
        guard(elapsed_s, 5.0)
        assert not guard.stopped
        assert guard.state_dict()["over_s"] == counted_s


def test_a_board_that_fails_to_change_is_where_it_was():
    def fail(mhz):
        raise OSError("gone")

    guard, _ = made(change=fail)
    with pytest.raises(OSError, match="gone"):
        guard(0.0, 5.0)
    assert guard.value == 500.0
    assert guard.events == []


@given(st.integers(0, 2**32), st.integers(1, 399))
@settings(max_examples=30, deadline=None)
def test_a_guard_goes_on_from_its_state(seed, cut):
    noise = random.Random(seed)
    readings = [(4.3 + noise.gauss(0, 0.3), 78 + noise.gauss(0, 2)) for _ in range(400)]
    whole, clock = made(settle_s=0.2, max_temp_c=80.0)
    first, _ = made(settle_s=0.2, max_temp_c=80.0)
    second, later = made(settle_s=0.2, max_temp_c=80.0)
    for i, (power_w, temperature_c) in enumerate(readings):
        whole(i / 10, power_w, temperature_c)
        if i < cut:
            first(i / 10, power_w, temperature_c)
            continue
        if i == cut:
            second.load_state_dict(first.state_dict())
        second(i / 10, power_w, temperature_c)
    assert later.mhz == clock.mhz
    assert second.state_dict() == whole.state_dict()
