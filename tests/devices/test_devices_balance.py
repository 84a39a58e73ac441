"""Settings of equal times: properties of the model, and what it learns from noisy times."""

import json
import math
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wattune.devices import Knob
from wattune.devices.group.balance import BAND, SLACK, Balance

CLOCKS = (200.0, 300.0, 450.0, 600.0, 800.0, 1000.0)


@st.composite
def members(draw):
    """Knobs, and a law of time for each: a part that falls with the clock, one that does not."""
    knobs, laws = [], []
    for _ in range(draw(st.integers(1, 5))):
        values = sorted(draw(st.sets(st.integers(1, 60), min_size=1, max_size=8)))
        knobs.append(Knob("clock_mhz", tuple(50.0 * value for value in values)))
        laws.append((draw(st.floats(0.0, 1.0)), draw(st.floats(0.01, 4.0))))
    return knobs, laws


def time_of(law, knob, value):
    fixed_s, scale = law
    return fixed_s + scale * knob.values[-1] / value


def train(balance, knobs, laws, values, *, work="w", factor=1.0, steps=3, noise=lambda: 1.0):
    for _ in range(steps):
        times_s = [factor * noise() * time_of(*one) for one in zip(laws, knobs, values, strict=True)]
        balance.observe(work, values, times_s)


def highest_of(knobs):
    """The highest values at each level, ascending."""
    most = max(len(knob.values) for knob in knobs)
    shares = [level / max(1, most - 1) for level in range(most)]
    return [[knob.by_power[round(share * (len(knob.values) - 1))] for knob in knobs] for share in shares]


def walk(balance, knobs, laws, draws):
    """Train at some levels."""
    table = balance.table()
    for index in draws:
        levels = knobs[balance.widest].by_power
        row = table[levels[index % len(levels)]]
        train(balance, knobs, laws, row, work=index % 2, factor=1.0 + index % 2)
        table = balance.table(table)
    return table


@given(members(), st.lists(st.integers(0, 20), max_size=6))
def test_the_pace_is_never_exceeded_in_the_model_and_power_rises_with_the_setting(group, draws):
    knobs, laws = group
    balance = Balance(knobs)
    table = walk(balance, knobs, laws, draws)
    assert list(table) == list(knobs[balance.widest].by_power)
    before = None
    for row, highest in zip(table.values(), highest_of(knobs), strict=True):
        pace_s = max(balance.time(member, value) for member, value in enumerate(highest))
        for member, own in enumerate(row):
            assert own in knobs[member].values
            assert own <= highest[member]
            assert balance.time(member, own) <= (1 + SLACK + BAND + 1e-9) * pace_s
            if before is not None:
                assert own >= before[member]
        before = row
    assert next(iter(table.values())) == tuple(knob.safest for knob in knobs)


@given(members(), st.integers(0, 20))
def test_no_member_draws_more_than_at_the_least_setting_that_keeps_the_pace(group, at):
    """The power of every member rises with its value: no other choice of as fast a step draws less, but for slack."""
    knobs, laws = group
    balance = Balance(knobs)
    for row in highest_of(knobs):  # every setting is known
        train(balance, knobs, laws, row)
    rows = list(balance.table().values())
    row, highest = rows[at % len(rows)], highest_of(knobs)[at % len(rows)]
    pace_s = max(time_of(law, knob, value) for law, knob, value in zip(laws, knobs, highest, strict=True))
    for own, knob, law in zip(row, knobs, laws, strict=True):
        assert own == min(v for v in knob.values if time_of(law, knob, v) <= pace_s * (1 + 1e-6))


@given(st.integers(1, 6), st.lists(st.integers(0, 5), max_size=4), st.floats(0.0, 1.0))
@example(2, [2, 3, 4], 1.0)
def test_equal_members_are_set_alike(count, draws, fixed_s):
    knobs = [Knob("clock_mhz", CLOCKS)] * count
    table = walk(Balance(knobs), knobs, [(fixed_s, 0.5)] * count, draws)
    assert table == {value: (value,) * count for value in CLOCKS}


def test_power_limits_follow_observed_times_and_not_watts():
    """The better card needs fewer watts for the same time."""
    knobs = [Knob("power_limit_w", (100.0, 150.0, 200.0, 250.0))] * 2
    laws = [(0.2, 0.8), (0.2, 0.5)]
    table = walk(Balance(knobs), knobs, laws, [3, 2, 1, 3, 2, 1])
    assert table[250.0] == (250.0, 200.0)
    assert table[150.0][1] == 100.0


def test_noise_does_not_make_a_setting_flap():
    knobs, laws = [Knob("clock_mhz", CLOCKS)] * 4, [(0.1, 0.9), (0.1, 0.9), (0.1, 0.905), (0.1, 0.45)]
    draw = random.Random(3)
    balance = Balance(knobs)
    table, changes = balance.table(), []
    for number in range(200):
        train(balance, knobs, laws, table[800.0], steps=10, noise=lambda: math.exp(draw.gauss(0.0, 0.01)))
        before, table = table, balance.table(table)
        if table[800.0] != before[800.0]:
            changes.append(number)
    assert table[800.0] == (800.0, 800.0, 800.0, 450.0)
    assert len(changes) <= 2
    assert max(changes) < 20


def test_a_slow_first_step_does_not_count():
    knobs, laws = [Knob("clock_mhz", CLOCKS)] * 2, [(0.0, 1.0), (0.0, 1.0)]
    balance = Balance(knobs)
    balance.observe("w", (1000.0, 1000.0), (1.0, 40.0))
    train(balance, knobs, laws, (1000.0, 1000.0), steps=2)
    assert balance.time(1, 1000.0) == balance.time(0, 1000.0)


def test_what_was_learned_with_one_work_holds_for_another():
    knobs, laws = [Knob("clock_mhz", CLOCKS)] * 2, [(0.0, 1.0), (0.0, 0.5)]
    balance = Balance(knobs)
    train(balance, knobs, laws, (1000.0, 1000.0))
    train(balance, knobs, laws, (600.0, 300.0), work="larger", factor=3.7)
    assert balance.time(0, 600.0) / balance.time(1, 1000.0) == pytest.approx(2 / 0.6)
    assert balance.time(1, 300.0) == pytest.approx(balance.time(0, 600.0))


def test_an_old_time_that_contradicts_a_new_one_is_dropped():
    knobs = [Knob("clock_mhz", CLOCKS)] * 2
    balance = Balance(knobs)
    for value, own_s in ((600.0, 1.2), (1000.0, 1.0)):
        for _ in range(3):
            balance.observe("w", (1000.0, value), (1.0, own_s))
    for _ in range(60):
        balance.observe("w", (1000.0, 1000.0), (1.0, 2.0))  # it throttles
    assert balance.time(1, 1000.0) / balance.time(0, 1000.0) == pytest.approx(2.0, rel=0.02)
    assert balance.time(1, 600.0) >= balance.time(1, 1000.0)


def test_it_continues_from_its_state():
    knobs, laws = [Knob("clock_mhz", CLOCKS)] * 3, [(0.1, 1.0), (0.2, 0.7), (0.0, 0.9)]
    balance, other = Balance(knobs), Balance(knobs)
    for value in (1000.0, 600.0):
        train(balance, knobs, laws, (value, value, value), work=(8, 4, 1e9))
    other.load_state_dict(json.loads(json.dumps(balance.state_dict())))
    assert other.table() == balance.table()
    assert other.state_dict() == balance.state_dict()
