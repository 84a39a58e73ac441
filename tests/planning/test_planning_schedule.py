"""Points and times chosen together by a forecast of carbon or price, against brute force."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.planning_tables import CLOCKS, cell

from wattune.cap import PowerCap
from wattune.errors import InputError, NoFeasiblePoint
from wattune.goal import Goal
from wattune.intensity import JOULES_PER_KWH, Intensity
from wattune.planning import plan
from wattune.planning.grains import Accumulated, Work, cheapest
from wattune.planning.over_time import SPARE
from wattune.records import EfficiencyPoint, Plan, ProfileTable, SampleEfficiency

HOUR_S = 3600.0
PEAK = PowerCap(window="peak")
BEGIN = datetime(2025, 6, 1, tzinfo=timezone.utc)
DAY = Intensity(
    tuple(HOUR_S * hour for hour in range(12)),
    (400.0, 390, 380, 200, 60, 50, 70, 220, 380, 400, 410, 420),
    begin=BEGIN,
    name="ci.csv",
)


def curve(samples: float = 1e6, **relative: float) -> SampleEfficiency:
    points = tuple(
        EfficiencyPoint(batch_size=int(name[1:]), relative_samples=value, samples=samples * value)
        for name, value in relative.items()
    )
    return SampleEfficiency(workload="target", reference_batch_size=points[-1].batch_size, points=points)


def two_points() -> ProfileTable:
    """A fast point and a frugal one that takes a quarter longer, at a batch size of 10: 1.0 h and 1.25 h for 1e6."""
    cells = (cell(10, 500.0, 0.036, 10.0, 10.0), cell(10, 250.0, 0.045, 7.0, 7.0))
    return ProfileTable(device="a board", workload="target", cells=cells, rest_w=2.0)


def planned(deadline_h: float, intensity: Intensity = DAY, **arguments: object) -> Plan:
    goal = Goal("energy", deadline_s=deadline_h * HOUR_S)
    return plan(two_points(), curve(b10=1.0), cap=PEAK, goal=goal, intensity=intensity, **arguments)


def test_the_frugal_point_waits_until_more_waiting_saves_nothing():
    result = planned(8)
    schedule = result.schedule
    assert result.clock_mhz == 250.0
    assert result.predicted_s == pytest.approx(1.25 * HOUR_S)
    assert [(one.from_s, one.until_s) for one in schedule.times] == [(4 * HOUR_S, None)]
    assert schedule.finish_s == pytest.approx(5.25 * HOUR_S)
    kwh = 7.0 * HOUR_S / JOULES_PER_KWH
    assert schedule.predicted == pytest.approx(kwh * (60 + 0.25 * 50))
    assert schedule.at_once == pytest.approx(kwh * (400 + 0.25 * 390))
    assert schedule.fastest_at_once == pytest.approx(10.0 * HOUR_S / JOULES_PER_KWH * 400)
    assert schedule.predicted_waiting == pytest.approx(2.0 * HOUR_S / JOULES_PER_KWH * (400 + 390 + 380 + 200))
    assert schedule.begin == BEGIN.isoformat()


def test_the_time_begins_now():
    now = BEGIN + timedelta(hours=5)
    result = planned(3, now=now)
    assert result.schedule.begin == now.isoformat()
    assert result.schedule.times[0].from_s == 0
    assert result.schedule.forecast[0].value == 50
    for moment in (BEGIN - timedelta(minutes=1), BEGIN + timedelta(hours=12)):
        with pytest.raises(InputError, match=r"ci\.csv has no value for the present: 2025-.* allowed: 2025-06-01"):
            planned(3, now=moment)


def test_the_wait_ends_with_the_forecast():
    result = planned(100, now=BEGIN + timedelta(hours=8))
    assert result.schedule.finish_s == pytest.approx(1.25 * HOUR_S)  # which is the least of its last four hours
    assert result.schedule.times[0].from_s == 0


def test_what_has_no_times_is_refused():
    with pytest.raises(InputError, match=r"ci\.csv without a deadline; allowed: .*--deadline 16h"):
        plan(two_points(), curve(b10=1.0), cap=PEAK, goal=Goal("energy"), intensity=DAY)
    with pytest.raises(NoFeasiblePoint, match="no point under the cap meets the deadline"):
        planned(0.9)
    goal = Goal("cost", deadline_s=1e5, price_per_kwh=0.3)
    with pytest.raises(InputError, match=r"the goal cost with ci\.csv"):
        plan(two_points(), curve(b10=1.0), cap=PEAK, goal=goal, intensity=DAY)


@given(
    st.lists(st.tuples(st.floats(0.01, 0.1), st.floats(2.0, 9.0)), min_size=6, max_size=6),
    st.lists(st.floats(0, 500), min_size=8, max_size=8),
    st.floats(1.0, 3.0),
    st.sampled_from(["energy", "energy-above-rest"]),
)
@settings(max_examples=60, deadline=None)
def test_no_other_point_with_its_own_times_takes_less(figures, values, slack, aim):
    cells = [cell(size, CLOCKS[at % 2], *figures[at]) for at, size in enumerate((8, 8, 16, 16, 32, 32))]
    table = ProfileTable(device="a board", workload="target", cells=tuple(cells), rest_w=1.5)
    efficiency = curve(2e6, b8=0.5, b16=0.7, b32=1.0)
    intensity = Intensity(tuple(HOUR_S * hour for hour in range(8)), tuple(values))
    fastest = plan(table, efficiency, cap=PEAK)
    goal = Goal(aim, deadline_s=fastest.predicted_s * slack)
    result = plan(table, efficiency, cap=PEAK, goal=goal, intensity=intensity)

    waits_w = 1.5 if aim == "energy" else 0.0

    def over_time(watts: float) -> Accumulated:
        return Accumulated(HOUR_S * np.arange(8), watts * np.array(values))

    def amount(seconds: float, watts: float) -> float:
        until_s = min(goal.deadline_s - SPARE * seconds, intensity.end_s)
        even, rest_w = Accumulated(HOUR_S * np.arange(8), np.ones(8)), min(waits_w, watts)
        counted_w = max(watts - 1.5, 0.01 * watts) if aim == "energy-above-rest" else watts
        work = Work(even, over_time(rest_w), over_time(counted_w - rest_w))
        return work.account(cheapest(work, seconds, until_s))

    every = [
        amount(one.predicted_s, one.predicted_j / one.predicted_s)
        for one in result.candidates
        if one.predicted_s is not None and one.predicted_s <= goal.deadline_s
    ]
    assert amount(result.predicted_s, result.power_mean_w) <= min(every) * (1 + 1e-6) + 1e-6
    whole = result.schedule.predicted + (result.schedule.predicted_waiting if aim == "energy" else 0.0)
    assert whole <= result.schedule.at_once * (1 + 1e-9) + 1e-12


def test_a_board_that_takes_much_at_rest_begins_at_once():
    """Waiting for a tenth of the carbon saves 6.3 W for an hour, and costs 6 W for two."""
    table = two_points().model_copy(update={"rest_w": 6.0})
    falling = Intensity((0.0, HOUR_S, 2 * HOUR_S, 4 * HOUR_S), (100.0, 100.0, 10.0, 10.0))
    for rest_w, begins_s in ((6.0, 0.0), (1.0, 2 * HOUR_S)):
        table = two_points().model_copy(update={"rest_w": rest_w})
        goal = Goal("energy", deadline_s=4 * HOUR_S)
        schedule = plan(table, curve(b10=1.0), cap=PEAK, goal=goal, intensity=falling).schedule
        assert schedule.times[0].from_s == begins_s
