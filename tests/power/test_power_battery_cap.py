"""What a battery grants over a run: charge, pauses, gauges that fail or stop, and the record."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from tests.support.real_time_device import RealTimeDevice

from wattune.budgets.battery import Battery
from wattune.budgets.battery_rule import PowerPoint
from wattune.budgets.charge import CalledCharge
from wattune.cap_trace import UNLIMITED_W
from wattune.devices import SimulatedDevice, builtin_board
from wattune.errors import InputError
from wattune.power.battery_cap import SAMPLES, BatteryCap, BatteryCourse, open_charge
from wattune.records import Supply

NOON = datetime(2025, 6, 21, 12, tzinfo=timezone.utc)
LEVELS = {PowerPoint(90.0, 4.0): 4.2, PowerPoint(100.0, 5.0): 5.3}
CAPACITY_J = 80 * 3600.0


class Bench:
    """A board whose energy is set by hand, and the events that were noted."""

    def __init__(self, charge, *, supply=None, **fields):
        self.drawn_j, self.events = 0.0, []
        battery = Battery(CAPACITY_J, charge=charge, **fields)
        self.course = BatteryCourse(
            battery,
            CalledCharge(charge),
            LEVELS,
            supply=supply,
            rest_w=1.4,
            begin=NOON,
            drawn_j=lambda: self.drawn_j,
            samples_left=lambda: 1e9,
            note=lambda *event: self.events.append(event),
        )

    def pass_minutes(self, begin, count, power_w):
        watts = []
        for minute in range(begin, begin + count):
            watts.append(self.course.watts(60.0 * minute))
            self.drawn_j += 60 * power_w
        return watts


def test_levels_choose_settings_and_a_low_charge_pauses():
    charges = {0: 0.9, 1: 0.99, 10: 0.2, 20: 0.99}

    def charge(time_s):
        return charges[max(minute for minute in charges if 60 * minute <= time_s)]

    bench = Bench(charge)
    watts = bench.pass_minutes(0, 30, 5.0)
    assert watts[0] == 4.2
    assert watts[9] == UNLIMITED_W
    assert watts[10:20] == [0.0] * 10
    assert watts[20] == UNLIMITED_W
    assert bench.events == []
    cap = BatteryCap(course=bench.course)
    assert cap.why_paused(0.0) is None
    assert not cap.limits


def test_the_charge_is_looked_at_once_a_minute():
    looks = []
    bench = Bench(lambda time_s: looks.append(time_s) or 0.9)
    for tenth in range(1200):
        bench.course.watts(tenth / 10)
    assert looks == [0.0, 60.0]


def test_the_reason_of_a_pause_has_the_charge():
    bench = Bench(lambda time_s: 0.25)
    assert bench.course.watts(0.0) == 0
    assert bench.course.why_paused.startswith("25 % charge, of which the reserve")


def test_a_source_that_goes_away_counts_as_falling_with_one_event():
    bench = Bench(lambda time_s: 0.9 if time_s < 600 or time_s > 36000 else None)
    watts = bench.pass_minutes(0, 601, 5.0)
    assert [kind for _, kind, _ in bench.events] == ["charge unread"]
    assert bench.events[0][2].startswith(
        "the callable returned None; it counts as falling from the last charge of 90 %"
    )
    assert watts[9] > 0
    assert watts[-1] == 0  # it never runs for good on a dead reading
    figures = bench.course.figures()
    assert figures.least < 0.6
    assert bench.pass_minutes(601, 1, 5.0)[0] == 0  # the same value is no sign of life
    assert len(bench.events) == 1


def test_a_gauge_that_has_stopped_counts_as_falling_but_not_one_that_the_sun_explains():
    dead = Bench(lambda time_s: 0.9)
    dead.pass_minutes(0, 60, 5.0)
    assert dead.events[0][2].startswith("a callable has not changed while the board drew")
    assert dead.course.figures().charge[-1].share < 0.9
    at_noon = Bench(lambda time_s: 0.9, panel_w=20.0, at=(40.0, 0.0))
    at_noon.pass_minutes(0, 60, 5.0)
    assert at_noon.events == []


def test_a_source_that_comes_back_is_believed_again():
    bench = Bench(lambda time_s: None if 600 <= time_s < 1200 else 0.9 if time_s < 600 else 0.8)
    bench.pass_minutes(0, 30, 5.0)
    assert bench.course.figures().charge[-1].share == 0.8
    with pytest.raises(InputError, match="the charge of the battery: the callable returned None"):
        Bench(lambda time_s: None).course.watts(0.0)


def test_losses_before_the_sensor_count():
    bench = Bench(lambda time_s: 0.9, supply=Supply(other_w=0.6, efficiency=0.8))
    assert bench.course.rule.fastest.power_w == pytest.approx(7.0)
    assert bench.course.rule.waiting_w == pytest.approx(2.5)


def test_the_time_under_the_reserve_and_a_thinned_trace():
    bench = Bench(lambda time_s: 0.9 - time_s / 60 / 2000)
    bench.pass_minutes(0, 1600, 1.4)
    bench.course.finish(1600 * 60.0)
    figures = bench.course.figures()
    assert len(figures.charge) <= SAMPLES + 1
    assert figures.charge[0].share == 0.9
    assert figures.charge[-1].time_s == 1600 * 60.0
    assert figures.least == pytest.approx(0.1)
    assert figures.under_reserve_s == pytest.approx(200 * 60, abs=61)
    assert (figures.source, figures.mode, figures.reserve) == ("a callable", "strict", 0.2)


def test_a_later_course_continues():
    bench, other = (Bench(lambda time_s: 0.9 - time_s / 60 / 2000) for _ in range(2))
    bench.pass_minutes(0, 100, 5.0)
    other.course.load_state_dict(bench.course.state_dict())
    other.drawn_j = bench.drawn_j
    assert other.pass_minutes(100, 700, 5.0) == bench.pass_minutes(100, 700, 5.0)
    assert other.course.figures() == bench.course.figures()


def test_only_a_simulated_board_has_a_simulated_battery():
    simulated = SimulatedDevice(builtin_board("jetson-nano"))
    assert str(open_charge(Battery(CAPACITY_J), simulated, begin=NOON)) == "simulated"
    with pytest.raises(InputError, match="--charge is missing"):
        open_charge(Battery(CAPACITY_J), RealTimeDevice(), begin=NOON)
