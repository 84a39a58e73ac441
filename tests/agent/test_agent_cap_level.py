"""The rule that holds a cap: a level on a ladder of settings."""

import json
import math
import random
from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattune_agent.cap_level import CapLevel, Sensing
from wattune_agent.power_log import PowerLog, PowerTable
from wattune_agent.slicing import gains_of

ORIN_MHZ = (306.0, 408.0, 510.0, 612.0, 714.0, 816.0, 918.0)
ORIN_W = [4.5 + 10.5 * (0.2 + 0.8 * mhz / 918 * (0.65 + 0.35 * mhz / 918) ** 2) for mhz in ORIN_MHZ]
SENSORS = {"instant": (0.0, 0.0, 0.0), "Nano": (0.42, 0.0, 0.42), "lag": (0.1, 0.5, 0.1), "1 Hz": (1.0, 0.0, 1.0)}


class FakeBoard:
    """A board in ticks of 10 ms whose setting changes a tick after it was chosen; ``powers``: of its settings."""

    def __init__(self, powers, sensor=SENSORS["instant"], *, every_s=0.05):
        self.powers, (self.averaging_s, self.lag_s, self.period_s) = powers, sensor
        self.tick, self.setting, self.chosen, self.value_w = 0, len(powers) - 1, len(powers) - 1, 0.0
        self.every = round(100 * every_s)
        self.seen = deque(maxlen=round(100 * (self.averaging_s + self.lag_s)) + 2)
        self.history = []

    @property
    def time_s(self):
        return self.tick / 100

    def run(self, level, seconds, load=lambda time_s: 1.0):
        """Run for some seconds under a level; returns the exact power of each tick."""
        begun = len(self.history)
        for _ in range(round(100 * seconds)):
            power_w = load(self.time_s) * self.powers[self.setting]
            self.history.append(power_w)
            self.seen.append(power_w)
            self.setting = self.chosen
            self.tick += 1
            self.read()
            if self.tick % self.every == 0 and self.value_w:
                self.chosen = level.step(self.time_s, self.value_w if self.tick % 10 == 0 else None)
        return self.history[begun:]

    def read(self):
        if self.tick % max(1, round(100 * self.period_s)) == 0:
            end = len(self.seen) - round(100 * self.lag_s)
            window = list(self.seen)[max(0, end - max(1, round(100 * self.averaging_s))) : end]
            self.value_w = sum(window) / len(window) if window else 0.0


def windows(powers_w):
    sums = [0.0]
    for power_w in powers_w:
        sums.append(sums[-1] + power_w)
    return [(sums[i + 100] - sums[i]) / 100 for i in range(len(sums) - 100)]


def made(powers, cap_w, sensor=SENSORS["instant"], *, slices=False, errors=None):
    ratios = [high / low for low, high in pairwise(powers)]
    table = PowerTable(
        [ratio * (1 + error) for ratio, error in zip(ratios, errors or [0.0] * len(ratios), strict=True)]
    )
    return CapLevel(table, cap_w, Sensing(1.0, *sensor), gains=[0.1] * len(ratios) if slices else None)


@given(st.sampled_from(sorted(SENSORS)), st.floats(0.6, 0.98), st.lists(st.floats(-0.3, 0.3), min_size=6, max_size=6))
@settings(max_examples=25, deadline=None)
def test_a_steady_load_uses_the_cap_and_no_window_exceeds_it(name, share, errors):
    """Errors of the table concern each step of power, so that settings keep their order."""
    steps = [high / low - 1 for low, high in pairwise(ORIN_W)]
    relative = [error * step / (1 + step) for error, step in zip(errors, steps, strict=True)]
    cap_w = max(share * ORIN_W[-1], 1.03 * ORIN_W[0])
    board = FakeBoard(ORIN_W, SENSORS[name])
    level = made(ORIN_W, cap_w, SENSORS[name], slices=True, errors=relative)
    board.run(level, 20.0 + len(ORIN_W) / 0.15)
    means_w = windows(board.run(level, 60.0))
    assert max(means_w) <= 1.005 * cap_w
    assert min(means_w) >= 0.96 * cap_w


@pytest.mark.parametrize("name", sorted(SENSORS))
def test_whole_settings_hold_the_highest_that_fits(name):
    board = FakeBoard(ORIN_W, SENSORS[name], every_s=0.1)
    level = made(ORIN_W, 1.02 * ORIN_W[3], SENSORS[name])
    board.run(level, 60.0)
    assert set(board.run(level, 60.0)) == {ORIN_W[3]}


@pytest.mark.slow
@pytest.mark.parametrize("slices", [False, True])
def test_after_a_day_with_an_excursion_each_half_hour_the_clock_is_that_of_the_first_hour(slices):
    hours = 3  # a rule that forgets within minutes is the same after a day
    board = FakeBoard(ORIN_W, every_s=0.1 if not slices else 0.05)
    level = made(ORIN_W, 1.02 * ORIN_W[4], slices=slices)

    def load(time_s):
        return 1.3 if time_s % 1800 < 20 else 0.95

    def mean_setting():
        begun = len(board.history)
        board.run(level, 3600.0, load)
        return sum(board.history[begun:]) / 360_000

    means = [mean_setting() for _ in range(hours)]
    assert means[-1] >= 0.99 * means[0]


def test_from_idle_to_full_power_no_window_is_far_above_the_cap():
    board = FakeBoard(ORIN_W, every_s=0.1)
    level = made(ORIN_W, 0.6 * ORIN_W[-1])
    found = board.run(level, 60.0, lambda time_s: 0.3 if time_s < 30 else 1.0)
    assert level.setting < len(ORIN_W) - 1
    assert max(windows(found)) <= 1.3 * 0.6 * ORIN_W[-1]


@pytest.mark.slow
@given(st.lists(st.floats(0.0, 0.4), min_size=6, max_size=6), st.integers(0, 5))
@settings(max_examples=8, deadline=None)
def test_a_wrong_table_never_holds_it_below_a_setting_that_fits_for_good(errors, fits):
    board = FakeBoard(ORIN_W, every_s=0.1)
    level = made(ORIN_W, 1.04 * ORIN_W[fits], errors=errors)
    level.start_at(0)
    board.chosen = 0
    board.run(level, 400.0)
    assert board.setting == fits
    assert max(windows(board.history)) <= 1.1 * 1.04 * ORIN_W[fits]


def test_what_does_not_fit_is_left_within_a_second_and_not_tried_again_for_minutes():
    board = FakeBoard(ORIN_W, every_s=0.1)
    level = made(ORIN_W, 0.98 * ORIN_W[4], errors=[0.2] * 6)
    found = board.run(level, 290.0)
    changes = sum(one != other for one, other in pairwise(found))
    above = [mean_w for mean_w in windows(found[1000:]) if mean_w > 1.02 * 0.98 * ORIN_W[4]]
    assert changes <= 8
    assert len(above) <= 100


def test_without_a_window_no_reading_is_above_except_the_one_of_a_trial():
    level = CapLevel(PowerTable.guess(ORIN_MHZ), 9.0, Sensing(0.0))
    board = FakeBoard(ORIN_W, every_s=0.1)
    board.run(level, 10.0)
    assert sum(power_w > 9.0 for power_w in board.run(level, 280.0)) <= 20


def test_without_a_cap_it_rises_to_the_highest_setting_and_without_readings_it_says_nothing():
    level = CapLevel(PowerTable.guess(ORIN_MHZ), None, Sensing(1.0))
    assert level.step(0.0) == 6
    level.start_at(0)
    for i in range(500):
        level.step(i / 10, 100.0)
    assert level.setting == 6
    level.most = 2
    assert level.step(50.1, 100.0) == 2


def test_a_reading_corrects_what_it_covers_and_all_that_is_later():
    log, table = PowerLog(10.0), PowerTable([2.0])
    for i in range(1, 5):
        log.add(i, 1.0, 1, 4.0)
    log.correct(2.0, 1.5)
    assert log.means(0.0, 2.0, table) == (2.0, 4.0, 1.0)
    assert log.means(2.0, 4.0, table) == (2.0, 6.0, 1.0)
    assert log.mix(0.5, 4.0) == {1: 3.5}
    assert math.isinf(PowerLog(1.0).end_s)


@given(st.integers(0, 2**32), st.integers(1, 399), st.booleans(), st.sampled_from([0.0, 1.0]))
@settings(max_examples=30, deadline=None)
def test_a_level_goes_on_from_its_state(seed, cut, slices, window_s):
    noise = random.Random(seed)
    readings = [8.0 + noise.gauss(0, 1.0) for _ in range(400)]
    sensing = Sensing(window_s, 0.2, 0.1, 0.1)

    def level():
        gains = gains_of(ORIN_MHZ) if slices else None
        return CapLevel(PowerTable.guess(ORIN_MHZ), 9.0, sensing, gains=gains)

    whole, later = level(), level()
    for i, power_w in enumerate(readings):
        if i == cut:
            later.load_state_dict(json.loads(json.dumps(whole.state_dict())))
        whole.step(i / 10, power_w)
        if i >= cut:
            later.step(i / 10, power_w)
    assert later.state_dict() == whole.state_dict()


def test_slices_need_not_stay_clear_of_a_sensors_noise():
    powers, noise = [4.0 * 1.05**i for i in range(7)], random.Random(1)
    board = FakeBoard(powers, SENSORS["Nano"])
    level = made(powers, 4.5, SENSORS["Nano"], slices=True)
    real = board.read

    def read():
        before_w = board.value_w
        real()
        if board.value_w != before_w:
            board.value_w += noise.gauss(0.0, 0.03)

    board.read = read
    board.run(level, 60.0)
    found = board.run(level, 120.0)
    assert sum(found) / len(found) >= 0.988 * 4.5
    assert max(windows(found)) <= 1.02 * 4.5
