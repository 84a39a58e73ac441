"""Mean power from a counter that moves in steps: exact over its refreshes, with few reads of it."""

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


def test_a_counter_that_stands_still_or_falls_gives_no_reading():
    counter = Counter()
    steps = counter.steps()
    steps.read_w()
    counter.power_w = -5.0
    with pytest.raises(NoReading, match="fell"):
        steps.read_w()
    counter.power_w = 0.0
    with pytest.raises(NoReading, match="stands still at 0"):
        steps.read_w()
