"""Mean power from a counter: exact over its refreshes, with few reads of it."""

import pytest

from wattune_agent.energy_steps import EnergySteps
from wattune_agent.errors import NoReading


class Counter:
    """A counter of ``power_w`` that is refreshed every ``refresh_s``, on a time of its own."""

    def __init__(self, power_w=200.0, refresh_s=0.1):
        self.power_w, self.refresh_s = power_w, refresh_s
        self.time_s = 17.03
        self.reads = 0

    def energy_j(self):
        self.reads += 1
        self.time_s += 0.0005
        return self.power_w * self.refresh_s * (self.time_s // self.refresh_s)

    def now_s(self):
        return self.time_s

    def sleep(self, seconds):
        self.time_s += seconds

    def steps(self):
        return EnergySteps(self.energy_j, self.now_s, self.sleep)


@pytest.mark.parametrize("refresh_s", [0.02, 0.05, 0.1, 0.11, 0.25])
def test_readings_are_exact_to_the_ends_of_the_window(refresh_s):
    counter = Counter(refresh_s=refresh_s)
    steps = counter.steps()
    readings = [steps.read_w() for _ in range(30)]
    assert readings == pytest.approx([200.0] * 30, rel=0.12)
    if refresh_s >= 0.1:
        assert readings[5:] == pytest.approx([200.0] * 25, rel=0.05)


def test_the_counter_is_read_a_few_times_per_refresh():
    counter = Counter()
    steps = counter.steps()
    steps.read_w()
    assert counter.reads <= 40
    begin_s, counter.reads = counter.time_s, 0
    for _ in range(50):
        steps.read_w()
    assert counter.reads / (counter.time_s - begin_s) <= 70  # 500 with a read every 2 ms


def test_a_reading_after_a_pause_has_a_short_window():
    counter = Counter()
    steps = counter.steps()
    steps.read_w()
    counter.sleep(10.0)
    begin_s = counter.time_s
    assert steps.read_w() == pytest.approx(200.0, rel=0.06)
    assert counter.time_s - begin_s < 0.5


@pytest.mark.parametrize("pause_s", [0.7, 1.0, 2.4, 10.0])
def test_a_reading_after_a_pause_holds_nothing_of_before(pause_s):
    counter, changed_s = Counter(power_w=1.0), 18.0

    def energy_j():
        reached_s = counter.energy_j()  # at 1 W, the time of the latest refresh
        return 300.0 * min(reached_s, changed_s) + 100.0 * max(0.0, reached_s - changed_s)

    steps = EnergySteps(energy_j, counter.now_s, counter.sleep)
    while counter.time_s < changed_s - 0.2:
        steps.read_w()
    counter.time_s = changed_s + 0.1
    counter.sleep(pause_s)
    assert [steps.read_w() for _ in range(5)] == pytest.approx([100.0] * 5, rel=0.06)


def test_a_counter_that_stands_still_or_falls_gives_no_reading():
    counter = Counter()
    steps = counter.steps()
    steps.read_w()
    counter.power_w = -5.0
    with pytest.raises(NoReading, match="impossible"):
        steps.read_w()
    counter.power_w = 0.0
    with pytest.raises(NoReading, match=r"stands still$"):
        steps.read_w()


def fresh(counter, energy_j):
    return EnergySteps(energy_j, counter.now_s, counter.sleep, refresh_s=0.0, window_s=0.1)


def test_the_first_read_waits_and_the_next_are_means_since_a_window_before():
    counter = Counter()
    steps = fresh(counter, lambda: 200.0 * counter.time_s)
    for pause_s, waited_s in ((0.0, 0.1), (0.1, 0.0), (0.0, 0.0), (60.0, 0.1)):  # a mean over a minute is not of now
        counter.sleep(pause_s)
        begin_s = counter.time_s
        assert steps.read_w() == pytest.approx(200.0)
        assert counter.time_s - begin_s == pytest.approx(waited_s)


@pytest.mark.parametrize("offset_s", [0.003, 0.02, 0.05, 0.097])
def test_two_readers_do_not_shorten_each_others_window(offset_s):
    counter = Counter()
    counter.time_s = 0.3
    steps = fresh(counter, lambda: 10.0 * counter.time_s + 20.0 * max(0.0, counter.time_s - 1.0))
    steps.read_w()
    for reader in range(1, 30):
        counter.time_s = 0.5 + 0.1 * (reader // 2) + offset_s * (reader % 2)
        power_w, since_s = steps.read_w(), max(0.0, counter.time_s - 1.0)
        if 0.0 < since_s < 0.09:  # no more than its share of the window is the new power
            assert power_w <= 10.0 + 20.0 * since_s / 0.09 + 0.1
        elif since_s > 0.2:
            assert power_w == pytest.approx(30.0)
