from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.planning_tables import board, cell, curve, problems

from wattune.cap import PowerCap
from wattune.errors import CapError, InputError, NoFeasiblePoint
from wattune.goal import TIME, Goal
from wattune.planning import log_step_times, plan
from wattune.records import Plan, ProfileCell, ProfileTable, SampleEfficiency
from wattune.reporting import plan_text

SAMPLES = 1000.0
CAP = PowerCap(6.0)

GOALS = st.one_of(
    st.sampled_from([TIME, Goal("energy"), Goal("energy-above-rest"), Goal("edp")]),
    st.builds(Goal, st.sampled_from(["energy", "edp"]), max_slowdown=st.sampled_from([0.05, 0.25, 1.0])),
    st.builds(Goal, st.just("energy"), deadline_s=st.floats(1.0, 2000.0)),
    st.builds(Goal, st.just("time"), energy_j=st.floats(1.0, 10000.0)),
    st.builds(Goal, st.just("cost"), price_per_kwh=st.floats(0.1, 1.0), price_per_hour=st.floats(1e-4, 1.0)),
)


def figures(profile: ProfileTable, efficiency: SampleEfficiency, chosen: ProfileCell) -> tuple[float, float]:
    time_s = chosen.step_s / chosen.batch_size * efficiency.at(chosen.batch_size).relative_samples * SAMPLES
    return time_s, time_s * chosen.power_mean_w


def value(goal: Goal, time_s: float, energy_j: float, rest_w: float) -> float:
    return {
        "time": time_s,
        "energy": energy_j,
        "energy-above-rest": max(energy_j - rest_w * time_s, 0.01 * energy_j),
        "edp": energy_j * time_s,
        "cost": (goal.price_per_kwh or 0) * energy_j / 3.6e6 + (goal.price_per_hour or 0) * time_s / 3600,
    }[goal.aim]


def check(problem: tuple[ProfileTable, SampleEfficiency, float, float], goal: Goal) -> None:
    """The plan against all points, tried one by one by what the goal means."""
    profile, efficiency, cap_w, margin_w = problem
    profile = profile.model_copy(update={"rest_w": 0.9})
    feasible = [
        figures(profile, efficiency, one)
        for one in profile.cells
        if efficiency.at(one.batch_size).relative_samples is not None and one.power_peak_w + margin_w <= cap_w
    ]
    cap = PowerCap(cap_w, margin_w=margin_w, window="peak")
    if not feasible or (efficiency.reference_samples is None and (goal.deadline_s or goal.energy_j)):
        with pytest.raises((CapError, NoFeasiblePoint, InputError)):
            plan(profile, efficiency, cap=cap, goal=goal)
        return
    fastest_s = min(time_s for time_s, _ in feasible)
    within = [
        (time_s, energy_j)
        for time_s, energy_j in feasible
        if (goal.max_slowdown is None or time_s <= (1 + goal.max_slowdown) * fastest_s * (1 + 1e-12))
        and (goal.deadline_s is None or time_s <= goal.deadline_s * (1 + 1e-12))
        and (goal.energy_j is None or energy_j <= goal.energy_j * (1 + 1e-12))
    ]
    if not within and goal.deadline_s is not None:
        with pytest.raises(NoFeasiblePoint, match="deadline"):
            plan(profile, efficiency, cap=cap, goal=goal)
        return
    found = plan(profile, efficiency, cap=cap, goal=goal)
    chosen = next(one for one in profile.cells if one.point == found.point)
    time_s, energy_j = figures(profile, efficiency, chosen)
    if within:
        assert found.reached_share is None
        assert (time_s, energy_j) in within
        assert value(goal, time_s, energy_j, 0.9) <= min(value(goal, *one, 0.9) for one in within) * (1 + 1e-9)
    else:  # no point is within the energy: the one that comes furthest with it
        assert energy_j == min(one for _, one in feasible)
        assert found.reached_share == pytest.approx(goal.energy_j / energy_j)
    assert {candidate.why_not is None for candidate in found.candidates if candidate.point == found.point} == {True}
    assert all(candidate.why_not for candidate in found.candidates if candidate.point != found.point)


@given(problems(), GOALS)
def test_the_plan_is_the_best_of_all_points(problem, goal):
    check(problem, goal)


@given(problems())
def test_a_front_is_of_points_that_nothing_beats(problem):
    profile, efficiency, cap_w, margin_w = problem
    try:
        found = plan(profile, efficiency, cap=PowerCap(cap_w, margin_w=margin_w, window="peak"))
    except (CapError, NoFeasiblePoint):
        return
    at = {
        one.point: figures(profile, efficiency, one)
        for one in profile.cells
        if one.power_peak_w + margin_w <= cap_w and efficiency.at(one.batch_size).relative_samples
    }
    unbeaten = {
        (time_s, energy_j)
        for time_s, energy_j in at.values()
        if not any((t <= time_s and e < energy_j) or (t < time_s and e <= energy_j) for t, e in at.values())
    }
    assert [at[point.point] for point in found.front] == sorted(unbeaten)
    first_s, first_j = at[found.front[0].point]
    for point in found.front:
        assert point.slower == pytest.approx(at[point.point][0] / first_s - 1)
        assert point.saves == pytest.approx(1 - at[point.point][1] / first_j)


def steep() -> ProfileTable:
    """Four clocks at one batch size: 1, 1.03, 1.2 and 1.5 times as slow, with 1, 0.75, 0.7 and 0.8 of the energy."""
    cells = [(400, 1.0, 4.0), (300, 1.03, 4.0 * 0.75 / 1.03), (200, 1.2, 4.0 * 0.7 / 1.2), (100, 1.5, 4.0 * 0.8 / 1.5)]
    return ProfileTable(
        device="d", workload="w", cells=tuple(cell(8, clock, time_s, watts, watts) for clock, time_s, watts in cells)
    )


def of(goal: Goal = TIME, profile: ProfileTable | None = None) -> Plan:
    return plan(profile or steep(), curve({8: 1.0}), cap=CAP, goal=goal)


def said(found: Plan) -> str:
    return plan_text.trade_off(found.front, found.point)


def test_the_trade_off_is_said_whatever_the_goal_is():
    assert said(of()) == "3 % slower would save 25 % of the energy (batch size 8 at 300 MHz)"
    assert "3 % slower would save 25 %" in said(of(Goal("energy")))
    chosen = of(Goal("energy", max_slowdown=0.05))
    assert said(chosen) == ""
    assert "3 % slower than the fastest point, with 25 % less energy" in plan_text.goal(chosen)
    flat = ProfileTable(device="d", workload="w", cells=(cell(8, 200, 1.0, 3.0, 3.0), cell(8, 100, 1.1, 2.7, 2.7)))
    assert said(of(profile=flat)) == (
        "of the points measured under the cap, the fastest is within 1 % of the least energy, which is 10 % slower"
    )
    alone = ProfileTable(device="d", workload="w", cells=(cell(8, 200, 1.0, 3.0, 3.0),))
    assert said(of(profile=alone)) == "of the points measured under the cap, the fastest takes the least energy"


def test_what_lost_says_so_in_terms_of_the_goal():
    why = {one.clock_mhz: one.why_not for one in of(Goal("energy")).candidates}
    assert why == {400: "1.43 x more energy", 300: "1.07 x more energy", 200: None, 100: "1.14 x more energy"}
    why = {one.clock_mhz: one.why_not for one in of(Goal("energy", max_slowdown=0.05)).candidates}
    assert why[300] is None
    assert why[200] == "1.20 x slower than the fastest point"
    time_s = of().predicted_s
    why = {one.clock_mhz: one.why_not for one in of(Goal("energy", deadline_s=1.1 * time_s)).candidates}
    assert why[200].endswith("over the deadline")


def test_a_deadline_that_cannot_be_met_names_the_earliest_time():
    time_s = of().predicted_s
    with pytest.raises(NoFeasiblePoint, match=f"{time_s:.4g} s at the earliest, with batch size 8 at 400 MHz"):
        of(Goal("energy", deadline_s=0.9 * time_s))


def test_an_energy_that_is_not_enough_says_how_far_it_reaches():
    least_j = of(Goal("energy")).predicted_j
    found = of(Goal(energy_j=0.4 * least_j))
    assert found.clock_mhz == 200
    assert found.reached_share == pytest.approx(0.4)
    assert "enough for 40 % of the samples" in plan_text.goal(found)


def test_energy_above_rest_needs_the_power_at_rest():
    with pytest.raises(InputError, match="power at rest"):
        of(Goal("energy-above-rest"))
    known = steep().model_copy(update={"rest_w": 1.0})
    found = of(Goal("energy-above-rest"), known)
    assert found.predicted_above_rest_j == pytest.approx(found.predicted_j - found.predicted_s)
    assert of(profile=steep()).predicted_above_rest_j is None


def test_a_bound_in_seconds_needs_the_samples():
    unknown = curve({8: 1.0}, samples=None)
    for goal in (Goal("energy", deadline_s=10.0), Goal(energy_j=10.0)):
        with pytest.raises(InputError, match="without the samples"):
            plan(steep(), unknown, cap=CAP, goal=goal)
    assert plan(steep(), unknown, cap=CAP, goal=Goal("energy", max_slowdown=0.05)).clock_mhz == 300


@pytest.mark.parametrize(
    "arguments",
    [
        {"aim": "speed"},
        {"aim": "energy", "max_slowdown": 0.0},
        {"aim": "energy", "max_slowdown": math.nan},
        {"aim": "energy", "max_slowdown": True},
        {"aim": "energy", "max_slowdown": 0.1, "deadline_s": 5.0},
        {"aim": "time", "max_slowdown": 0.1},
        {"aim": "time", "deadline_s": 5.0},
        {"aim": "energy", "energy_j": 5.0},
        {"aim": "cost"},
        {"aim": "energy", "price_per_kwh": 0.3},
    ],
)
def test_goals_that_cannot_be(arguments):
    with pytest.raises(InputError):
        Goal(**arguments)


def test_batch_sizes_are_told_apart_by_what_the_goal_makes_least():
    profile, limit = board(), PowerCap(6.0).at_sensor(None, None)
    for goal in (TIME, Goal("energy"), Goal("edp")):
        costs = log_step_times(profile, limit, goal)
        for size, (mean, _) in costs.items():
            cells = [one for one in profile.cells if one.batch_size == size and one.power_peak_w <= 6.0]
            least = min(one.step_s / size * float(goal.price(one.power_mean_w, None)) for one in cells)
            assert mean == pytest.approx(math.log(least))


def test_a_goal_of_energy_is_doubted_on_the_board_that_disagrees_with_the_published_energy():
    def doubts(device: str, goal: Goal) -> list[str]:
        notes = plan(board().model_copy(update={"device": device}), curve(), cap=CAP, goal=goal).notes
        return [note for note in notes if "rely on it for energy" in note]

    assert len(doubts("sim:jetson-nano", Goal("energy"))) == 1
    assert doubts("sim:jetson-nano", TIME) == doubts("sim:jetson-tx2-nx", Goal("energy")) == []
