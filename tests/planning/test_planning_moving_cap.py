"""Plans for a cap that changes, against brute force."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planning.test_planning_own_batch_size import efficiency
from tests.support.planning_tables import BATCHES, CLOCKS, board, cell, curve

from wattune.cap import PowerCap
from wattune.cap_source import CalledCap, CapTrace
from wattune.errors import CapError, InputError
from wattune.planning import plan, plan_over_caps
from wattune.planning.moving_cap import FEW_POINTS
from wattune.records import Plan, ProfileTable

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
            plan_over_caps(table, curve(by_size), cap=cap)
        return
    result = plan_over_caps(table, curve(by_size), cap=cap)
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
        plan_over_caps(board(), curve(), cap=trace(5.0)),
        plan(board(), curve(), cap=PowerCap(5.0, window="peak")),
    )
    assert one.point == constant.point
    assert one.predicted_s == pytest.approx(constant.predicted_s)
    assert one.predicted_j == pytest.approx(constant.predicted_j)
    assert one.of_clairvoyant == one.over_constant == 1
    assert {c.point: c.feasible for c in one.candidates} == {c.point: c.feasible for c in constant.candidates}


def test_the_time_follows_the_caps_from_their_beginning():
    steady = plan_over_caps(board(), curve(), cap=trace(5.0, span_s=1e6))
    paused = plan_over_caps(board(), curve(), cap=CapTrace(PEAK, (0.0, 2.0, 10.0), (5.0, 0.0, 5.0)))
    assert steady.point == paused.point
    assert steady.predicted_s > 2
    assert paused.predicted_s == pytest.approx(steady.predicted_s + 8)
    assert paused.predicted_j == pytest.approx(steady.predicted_j)
    never = plan_over_caps(board(), curve(), cap=CapTrace(PEAK, (0.0, 2.0), (5.0, 0.0)))
    assert (never.predicted_s, never.predicted_j) == (None, None)
    unknown = plan_over_caps(board(), curve(samples=None), cap=trace(5.0, 4.0))
    assert (unknown.predicted_s, unknown.predicted_j) == (None, None)


def test_caps_that_are_not_known_are_planned_by_their_range():
    ranged = plan_over_caps(board(), curve(), cap=CalledCap(PEAK, (3.0, 6.0), lambda time_s: 6.0))
    assert len(ranged.caps) == 9
    assert ranged.cap_w == 6.0
    mean_s = 1 / sum(one.share / one.relative_time for one in ranged.caps if one.feasible)
    assert ranged.predicted_s == pytest.approx(1000 * mean_s)
    present = plan_over_caps(board(), curve(), cap=CalledCap(PEAK, cap_w=lambda time_s: 4.0))
    assert present.point == plan(board(), curve(), cap=PowerCap(4.0, window="peak")).point


def test_the_users_own_batch_size_is_kept_unless_another_is_surely_faster():
    caps = trace(6.0, 4.0, 3.0)
    free = plan_over_caps(board(), efficiency(None), cap=caps)
    neighbor = BATCHES[BATCHES.index(free.batch_size) + 1]
    unsure = plan_over_caps(board(), efficiency(neighbor, sd=0.1), cap=caps)
    assert (unsure.batch_size, unsure.own_batch_size) == (neighbor, neighbor)
    assert unsure.p_faster < 0.9
    assert unsure.pays_after_runs is None
    sure = plan_over_caps(board(), efficiency(128), cap=caps)
    assert sure.batch_size == sure.rival_batch_size == free.batch_size
    assert sure.p_faster >= 0.9
    alone = plan_over_caps(board(), efficiency(None), cap=caps, batch_size=128)
    assert sure.expected_gain == pytest.approx(1 - sum_rate(alone) / sum_rate(sure), abs=0.1)


def sum_rate(result: Plan) -> float:
    return sum(one.share / one.relative_time for one in result.caps if one.feasible)


def test_one_batch_size_without_a_curve_follows_the_caps_as_well():
    result = plan_over_caps(board(), cap=trace(6.0, 3.0, 0.5), batch_size=32)
    assert result.batch_size == 32
    settings_mhz = [one.clock_mhz for one in result.caps]
    assert settings_mhz[0] is None
    assert min(CLOCKS) <= settings_mhz[1] < settings_mhz[2] <= max(CLOCKS)


def test_a_cap_that_is_never_feasible_is_refused_by_the_highest():
    with pytest.raises(CapError, match="no measured point stays under the cap"):
        plan_over_caps(board(), curve(), cap=trace(1.0, 1.5))


def test_a_profile_along_one_cap_is_noted():
    staircase = board().model_copy(update={"strategy": "staircase"})
    assert FEW_POINTS in plan_over_caps(staircase, curve(), cap=trace(5.0, 4.0)).notes
    assert FEW_POINTS not in plan_over_caps(board(), curve(), cap=trace(5.0, 4.0)).notes
