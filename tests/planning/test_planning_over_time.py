"""Plans for caps that change, with other goals and with a forecast of carbon, against brute force."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planning.test_planning_own_batch_size import efficiency
from tests.support.planning_tables import BATCHES, CLOCKS, board, cell, curve

from wattune.cap import PowerCap
from wattune.cap_source import CalledCap, CapTrace
from wattune.errors import CapError, InputError, NoFeasiblePoint
from wattune.goal import Goal
from wattune.intensity import Intensity
from wattune.planning import plan, plan_algorithms
from wattune.planning.over_time import FEW_POINTS
from wattune.records import Plan, ProfileCell, ProfileTable

PEAK = PowerCap(window="peak")


def trace(*caps_w: float, span_s: float = 100.0, form: PowerCap = PEAK) -> CapTrace:
    return CapTrace(form, tuple(span_s * index for index in range(len(caps_w))), caps_w)


def seconds(table: ProfileTable, relative: dict[int, float], shape: object, cap_w: float, margin_w: float) -> float:
    """Seconds per reference sample at the fastest feasible point of a shape; infinite without one."""
    return min(
        (
            c.step_s / c.batch_size * relative[c.batch_size]
            for c in table.cells
            if c.shape == shape and cap_w and c.power_peak_w + margin_w <= cap_w
        ),
        default=math.inf,
    )


@given(
    st.lists(st.sampled_from([0.0, 1.0, 3.0, 4.0, 5.0, 6.0, 8.0]), min_size=1, max_size=6),
    st.lists(st.tuples(st.floats(0.001, 0.1), st.floats(2.0, 7.0)), min_size=12, max_size=12),
    st.lists(st.floats(0.3, 1.0), min_size=2, max_size=2),
    st.sampled_from([0.0, 0.3]),
)
@settings(max_examples=300, deadline=None)
def test_the_batch_size_has_the_highest_mean_progress_over_the_caps(caps_w, figures, relative, margin_w):
    shapes = [(8, None), (8, 4), (16, None), (32, None)]
    cells = [
        cell(batch, 100.0 * (1 + clock), *figures[3 * row + clock]).model_copy(update={"micro_batch_size": micro})
        for row, (batch, micro) in enumerate(shapes)
        for clock in range(3)
    ]
    table = ProfileTable(device="a board", workload="target", cells=tuple(cells))
    by_size = dict(zip((8, 16, 32), (*relative, 1.0), strict=True))
    cap = trace(*caps_w, form=PowerCap(margin_w=margin_w, window="peak"))
    at = {
        shape: {w: seconds(table, by_size, shape, w, margin_w) for w in cap.shares}
        for shape in {c.shape for c in cells}
    }
    rates = {shape: sum(share / at[shape][w] for w, share in cap.shares.items()) for shape in at}
    if not max(rates.values()):
        with pytest.raises((CapError, InputError)):
            plan(table, curve(by_size), cap=cap)
        return
    result = plan(table, curve(by_size), cap=cap)
    assert rates[result.shape] == pytest.approx(max(rates.values()))
    for one in result.caps:
        best_s = at[result.shape][one.asked_w]
        assert one.feasible == math.isfinite(best_s)
        if one.feasible:
            assert one.point.shape == result.shape
            assert one.relative_time == pytest.approx(best_s)
    free = sum(share / min(at[shape][w] for shape in at) for w, share in cap.shares.items())
    assert result.of_clairvoyant == pytest.approx(rates[result.shape] / free)
    constant = max(
        sum(share for w, share in cap.shares.items() if w and c.power_peak_w + margin_w <= w)
        * c.batch_size
        / c.step_s
        / by_size[c.batch_size]
        for c in cells
    )
    assert result.over_constant == pytest.approx(rates[result.shape] / constant)
    assert result.over_constant >= 1 - 1e-9
    assert result.of_clairvoyant <= 1 + 1e-9
    assert Plan.parse(result.dump()) == result


def test_under_one_cap_it_is_the_plan_of_a_constant_cap():
    one, constant = (
        plan(board(), curve(), cap=trace(5.0)),
        plan(board(), curve(), cap=PowerCap(5.0, window="peak")),
    )
    assert one.point == constant.point
    assert one.predicted_s == pytest.approx(constant.predicted_s)
    assert one.predicted_j == pytest.approx(constant.predicted_j)
    assert one.of_clairvoyant == one.over_constant == 1
    assert {c.point: c.feasible for c in one.candidates} == {c.point: c.feasible for c in constant.candidates}


def test_the_time_follows_the_caps_from_their_beginning():
    steady = plan(board(), curve(), cap=trace(5.0, span_s=1e6))
    paused = plan(board(), curve(), cap=CapTrace(PEAK, (0.0, 2.0, 10.0), (5.0, 0.0, 5.0)))
    assert steady.point == paused.point
    assert steady.predicted_s > 2
    assert paused.predicted_s == pytest.approx(steady.predicted_s + 8)
    assert paused.predicted_j == pytest.approx(steady.predicted_j)
    never = plan(board(), curve(), cap=CapTrace(PEAK, (0.0, 2.0), (5.0, 0.0)))
    assert (never.predicted_s, never.predicted_j) == (None, None)
    unknown = plan(board(), curve(samples=None), cap=trace(5.0, 4.0))
    assert (unknown.predicted_s, unknown.predicted_j) == (None, None)


def test_caps_that_are_not_known_are_planned_by_their_range():
    ranged = plan(board(), curve(), cap=CalledCap(PEAK, (3.0, 6.0), lambda time_s: 6.0))
    assert len(ranged.caps) == 9
    assert ranged.cap_w == 6.0
    mean_s = 1 / sum(one.share / one.relative_time for one in ranged.caps if one.feasible)
    assert ranged.predicted_s == pytest.approx(1000 * mean_s)
    present = plan(board(), curve(), cap=CalledCap(PEAK, cap_w=lambda time_s: 4.0))
    assert present.point == plan(board(), curve(), cap=PowerCap(4.0, window="peak")).point


def test_the_users_own_batch_size_is_kept_unless_another_is_surely_faster():
    caps = trace(6.0, 4.0, 3.0)
    free = plan(board(), efficiency(None), cap=caps)
    neighbor = BATCHES[BATCHES.index(free.batch_size) + 1]
    unsure = plan(board(), efficiency(neighbor, sd=0.1), cap=caps)
    assert (unsure.batch_size, unsure.own_batch_size) == (neighbor, neighbor)
    assert unsure.p_faster < 0.9
    sure = plan(board(), efficiency(128), cap=caps)
    assert sure.batch_size == sure.rival_batch_size == free.batch_size
    assert sure.p_faster >= 0.9
    alone = plan(board(), efficiency(None), cap=caps, batch_size=128)
    assert sure.expected_gain == pytest.approx(1 - sum_rate(alone) / sum_rate(sure), abs=0.1)


def sum_rate(result: Plan) -> float:
    return sum(one.share / one.relative_time for one in result.caps if one.feasible)


def test_one_batch_size_without_a_curve_follows_the_caps_as_well():
    result = plan(board(), cap=trace(6.0, 3.0, 0.5), batch_size=32)
    assert result.batch_size == 32
    settings_mhz = [one.clock_mhz for one in result.caps]
    assert settings_mhz[0] is None
    assert min(CLOCKS) <= settings_mhz[1] < settings_mhz[2] <= max(CLOCKS)


def test_a_cap_that_is_never_feasible_is_refused_by_the_highest():
    with pytest.raises(CapError, match="no measured point stays under the cap"):
        plan(board(), curve(), cap=trace(1.0, 1.5))


def test_a_profile_along_one_cap_is_noted():
    staircase = board().model_copy(update={"strategy": "staircase"})
    assert FEW_POINTS in plan(staircase, curve(), cap=trace(5.0, 4.0)).notes
    assert FEW_POINTS not in plan(board(), curve(), cap=trace(5.0, 4.0)).notes


# ---------------------------------------------------------------------------------------------------------------- goals

REST_W = 1.5
GOALS = (
    Goal("energy"),
    Goal("energy-above-rest"),
    Goal("edp"),
    Goal("cost", price_per_kwh=0.3, price_per_hour=0.01),
    Goal("energy", max_slowdown=0.2),
    Goal("energy", deadline_s=400.0),
    Goal("time", energy_j=1500.0),
)


def course(cells: Sequence[ProfileCell], samples: float, cap: CapTrace, goal: Goal, pace: ProfileCell):
    """Settings, mean rate, seconds and joules of one shape whose setting is the best one beside its pace."""
    beside = pace.step_s, pace.power_mean_w
    chosen: dict[float, ProfileCell | None] = {}
    for watts in cap.shares:
        allowed = [c for c in cells if c.power_peak_w <= watts]
        chosen[watts] = min(
            allowed, key=lambda c: goal.order(c.step_s, c.power_mean_w, REST_W, beside=beside), default=None
        )
    rates = {w: 0.0 if c is None else c.batch_size / c.step_s for w, c in chosen.items()}
    powers = {w: REST_W if c is None else c.power_mean_w for w, c in chosen.items()}
    rate, power_w = (sum(share * of[w] for w, share in cap.shares.items()) for of in (rates, powers))
    time_s = joules = 0.0
    for begin_s, watts, end_s in zip(cap.times_s, cap.caps_w, (*cap.times_s[1:], math.inf), strict=True):
        length_s = min(end_s - begin_s, samples / rates[watts] if rates[watts] else math.inf)
        time_s, joules = time_s + length_s, joules + length_s * powers[watts]
        samples -= length_s * rates[watts]
        if samples <= 1e-9:
            break
    return chosen, rate, time_s, joules, goal.price(power_w, REST_W) / rate


@given(
    st.lists(st.sampled_from([0.0, 3.0, 4.0, 5.0, 6.0]), min_size=1, max_size=4).map(lambda caps_w: (*caps_w, 7.5)),
    st.lists(st.tuples(st.floats(0.01, 0.1), st.floats(2.0, 7.0)), min_size=6, max_size=6),
    st.floats(0.3, 1.0),
    st.sampled_from(GOALS),
)
@settings(max_examples=200, deadline=None)
def test_for_another_goal_no_other_shape_or_pace_is_better(caps_w, figures, relative, goal):
    cells = [cell(8 if at < 3 else 32, CLOCKS[at % 3], *figures[at]) for at in range(6)]
    table = ProfileTable(device="a board", workload="target", cells=tuple(cells), rest_w=REST_W)
    cap, sizes = trace(*caps_w), {8: relative, 32: 1.0}
    every = {
        pace.point: course(
            [c for c in cells if c.shape == pace.shape], 20_000 * sizes[pace.batch_size], cap, goal, pace
        )
        for pace in cells
    }
    fastest = max(rate / sizes[point.batch_size] for point, (_, rate, *_) in every.items())
    met = {
        point: value * sizes[point.batch_size]
        for point, (_, rate, time_s, joules, value) in every.items()
        if (goal.deadline_s is None or time_s <= goal.deadline_s)
        and (goal.energy_j is None or joules <= goal.energy_j)
        and (
            goal.max_slowdown is None
            or rate / sizes[point.batch_size] * (1 + goal.max_slowdown) >= fastest * (1 - 1e-9)
        )
    }
    arguments = {"cap": cap, "goal": goal}
    if not met and goal.deadline_s is not None:
        with pytest.raises(NoFeasiblePoint, match="no point under the cap meets the deadline"):
            plan(table, curve(sizes, samples=20_000.0), **arguments)
        return
    result = plan(table, curve(sizes, samples=20_000.0), **arguments)
    chosen, _, time_s, joules, _ = every[result.point]
    assert {one.asked_w: one.point for one in result.caps} == {
        w: None if c is None else c.point for w, c in chosen.items()
    }
    assert result.predicted_s == pytest.approx(time_s)
    assert result.predicted_j == pytest.approx(joules)
    if met:
        assert met[result.point] <= min(met.values()) * (1 + 1e-9)
        assert result.reached_share is None
    else:
        assert joules == pytest.approx(min(one[3] for one in every.values()))
        assert result.reached_share == pytest.approx(goal.energy_j / joules)
    if goal.aim == "cost":
        assert result.predicted_cost == pytest.approx(0.3 * joules / 3.6e6 + 0.01 * time_s / 3600)
    assert (result.of_clairvoyant, result.over_constant, result.goal) == (None, None, goal)
    assert Plan.parse(result.dump()) == result


def test_another_goal_than_time_needs_the_samples_to_the_target():
    with pytest.raises(InputError, match="the goal energy under a cap that changes, without the samples"):
        plan(board(), cap=trace(6.0, 3.0), goal=Goal("energy"), batch_size=32)


def test_the_own_batch_size_is_kept_for_another_goal_too():
    for goal in (Goal("energy"), Goal("energy", max_slowdown=0.1)):
        free = plan(board(), efficiency(None), cap=trace(6.0, 4.0), goal=goal)
        neighbor = BATCHES[BATCHES.index(free.batch_size) + 1]
        kept = plan(board(), efficiency(neighbor, sd=0.3), cap=trace(6.0, 4.0), goal=goal)
        assert (kept.batch_size, kept.own_batch_size) == (neighbor, neighbor)
        assert kept.p_faster is None or kept.p_faster < 0.9
        left = plan(board(), efficiency(128), cap=trace(6.0, 4.0), goal=goal)
        assert (left.own_batch_size, left.batch_size) == (128, free.batch_size)
        # Beyond the bound, the own batch size is not compared.
        assert left.rival_batch_size == (free.batch_size if goal.max_slowdown is None else None)


# ------------------------------------------------------------------------------------------------- caps and a forecast

HOUR_S = 3600.0


@given(
    st.lists(st.sampled_from([0.0, 3.0, 4.5, 8.0]), min_size=5, max_size=5).filter(lambda caps_w: max(caps_w) == 8.0),
    st.lists(st.floats(0, 500), min_size=5, max_size=5),
    st.lists(st.tuples(st.floats(0.01, 0.1), st.floats(2.0, 7.0)), min_size=3, max_size=3),
    st.floats(0.1, 0.9),
    st.sampled_from(["energy", "energy-above-rest"]),
)
@settings(max_examples=100, deadline=None)
def test_no_other_hours_under_the_caps_take_less(caps_w, values, figures, share, aim):
    """Against every set of hours, one of them in part, at every pace; both change every hour."""
    cells = [cell(8, CLOCKS[at], *figures[at]) for at in range(3)]
    table = ProfileTable(device="a board", workload="target", cells=tuple(cells), rest_w=REST_W)
    cap = trace(*caps_w, span_s=HOUR_S)
    intensity = Intensity(tuple(HOUR_S * hour for hour in range(5)), tuple(values))
    goal = Goal(aim, deadline_s=100 * HOUR_S)  # the forecast ends long before
    paces = {pace.point: course(cells, 0.0, cap, goal, pace)[0] for pace in cells}
    slowest = min(
        sum(HOUR_S * 8 / c.step_s for w in caps_w if (c := chosen[w]) is not None) for chosen in paces.values()
    )
    samples = share * slowest
    result = plan(table, curve({8: 1.0}, samples=samples), cap=cap, goal=goal, intensity=intensity)

    def least(chosen: dict[float, ProfileCell | None]) -> float:
        rates = [0.0 if (c := chosen[w]) is None else 8 / c.step_s for w in caps_w]
        added_w = [0.0 if (c := chosen[w]) is None else goal.price(c.power_mean_w, REST_W) for w in caps_w]
        if aim == "energy":
            added_w = [max(0.0, watts - REST_W) for watts in added_w]
        rest_w = REST_W if aim == "energy" else 0.0
        best = math.inf
        for count in range(1, 6):
            for hours in itertools.combinations([hour for hour in range(5) if rates[hour]], count):
                for part in hours:
                    left = samples - sum(HOUR_S * rates[hour] for hour in hours if hour != part)
                    if not 0 <= left <= HOUR_S * rates[part]:
                        continue
                    lengths_s = {hour: HOUR_S if hour != part else left / rates[part] for hour in hours}
                    end_s = HOUR_S * hours[-1] + lengths_s[hours[-1]]
                    waiting = rest_w * intensity.integral(0.0, end_s)
                    best = min(best, waiting + sum(s * added_w[h] * values[h] for h, s in lengths_s.items()))
        return best

    def reached(chosen: dict[float, ProfileCell | None]) -> float:
        times = [(one.from_s, one.until_s or result.schedule.finish_s) for one in result.schedule.times]
        return sum(
            max(0.0, min(until_s, HOUR_S * (hour + 1)) - max(from_s, HOUR_S * hour)) * 8 / c.step_s
            for from_s, until_s in times
            for hour, watts in enumerate(caps_w)
            if (c := chosen[watts]) is not None
        )

    schedule = result.schedule
    assert reached(paces[result.point]) == pytest.approx(samples, rel=1e-6)
    assert schedule.finish_s <= 5 * HOUR_S + 1e-6
    if aim == "energy":
        account = 3.6e6 * (schedule.predicted + schedule.predicted_waiting)
        assert account <= min(map(least, paces.values())) * (1 + 1e-6) + 1e-3
    assert [one.asked_w for one in result.caps] == sorted(set(caps_w))
    assert Plan.parse(result.dump()) == result


def test_caps_that_are_not_known_make_progress_by_their_shares():
    table = ProfileTable(device="a board", workload="target", cells=(cell(8, 100.0, 0.08, 5.0),), rest_w=0.1)
    forecast = Intensity((0.0, HOUR_S, 2 * HOUR_S), (400.0, 10.0, 400.0))
    unknown = CalledCap(PEAK, (3.0, 7.0), lambda time_s: 6.0)  # half of its caps and a bit leave enough
    goal = Goal("energy", deadline_s=3 * HOUR_S)
    result = plan(table, curve({8: 1.0}, samples=100_000.0), cap=unknown, goal=goal, intensity=forecast)
    share = sum(one.share for one in result.caps if one.feasible)
    assert 0.4 < share < 0.7
    assert result.schedule.times[0].from_s == HOUR_S
    assert result.schedule.finish_s == pytest.approx(HOUR_S + 1000.0 / share)


def test_moments_of_caps_and_of_a_forecast_are_aligned_by_now():
    table = ProfileTable(device="a board", workload="target", cells=(cell(8, 100.0, 0.08, 4.0),), rest_w=0.1)
    hours = tuple(HOUR_S * hour for hour in range(6))
    noon = datetime(2025, 6, 1, 12, tzinfo=timezone.utc)
    forecast = Intensity(hours, (400.0, 400.0, 10.0, 10.0, 400.0, 400.0), begin=noon)
    caps = CapTrace(PEAK, hours, (5.0, 0.0, 0.0, 5.0, 5.0, 5.0), begin=noon - timedelta(hours=1))
    goal = Goal("energy", deadline_s=4 * HOUR_S)
    arguments = {"cap": caps, "goal": goal, "intensity": forecast, "now": noon + timedelta(hours=1)}
    result = plan(table, curve({8: 1.0}, samples=180_000.0), **arguments)
    # It is 13:00. The clean hours begin at 14:00, as do the caps that are no pause.
    assert [one.from_s for one in result.schedule.times] == [pytest.approx(HOUR_S, abs=1e-3)]
    with pytest.raises(InputError, match="begins after the run"):
        plan(table, curve({8: 1.0}), **{**arguments, "cap": replace(caps, begin=noon + timedelta(hours=2))})


def test_caps_that_end_in_a_pause_before_the_target_are_refused_by_a_forecast():
    forecast = Intensity((0.0, HOUR_S), (400.0, 10.0))
    goal = Goal("energy", deadline_s=2 * HOUR_S)
    with pytest.raises(NoFeasiblePoint, match=r"deadline: 7200 s; allowed: none, since the caps end in a pause before"):
        plan(board(), curve(), cap=trace(6.0, 0.0, span_s=1.0), goal=goal, intensity=forecast)


def test_what_was_assumed_of_files_is_a_note_of_the_plan():
    forecast = Intensity((0.0, HOUR_S), (400.0, 10.0), note="times of grid.csv are taken as local")
    caps = replace(trace(6.0, 5.0), note="times of caps.csv are taken as local")
    goal = Goal("energy", deadline_s=2 * HOUR_S)
    notes = plan(board(), curve(), cap=caps, goal=goal, intensity=forecast).notes
    assert notes[-2:] == (caps.note, forecast.note)


def test_several_algorithms_under_caps_and_a_forecast():
    relative = {8: 1.0, 32: 1.0}
    cells = {"backprop": 0.08, "backprop:checkpoint=auto": 0.12}
    tables = [
        ProfileTable(
            device="a board",
            workload="target",
            algorithm=name,
            rest_w=0.1,
            cells=(cell(8, 100.0, step_s, 4.0), cell(8, 200.0, step_s / 1.5, 6.5)),
        )
        for name, step_s in cells.items()
    ]
    curves = [curve(relative, samples=180_000.0)]
    caps = trace(7.0, 5.0, 0.0, 7.0, span_s=HOUR_S / 4)
    fast = plan_algorithms(tables, curves, cap=caps)
    assert [one.times_chosen for one in fast.algorithms] == [
        1.0,
        pytest.approx(fast.algorithms[1].predicted_s / fast.predicted_s),
    ]
    assert fast.predicted_s == plan(tables[0], curves[0], cap=caps).predicted_s
    forecast = Intensity(tuple(HOUR_S * hour for hour in range(6)), (400.0, 300.0, 10.0, 50.0, 60.0, 60.0))
    for cap in (caps, PowerCap(7.0, window="peak")):
        goal = Goal("energy", deadline_s=6 * HOUR_S)
        clean = plan_algorithms(tables, curves, cap=cap, goal=goal, intensity=forecast)
        assert clean.algorithm == "backprop"
        assert clean.schedule == plan(tables[0], curves[0], cap=cap, goal=goal, intensity=forecast).schedule
        assert clean.algorithms[1].why_not.endswith("x more carbon")
    ending = trace(7.0, 0.0, span_s=9.0)
    with pytest.raises(NoFeasiblePoint, match="the caps end in a pause before the target: backprop"):
        plan_algorithms(tables, curves, cap=ending)
