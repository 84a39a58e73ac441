"""Arithmetic of the pages: geometry of charts, and the choice under a cap, which must equal the planner's."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import report_records as samples

from wattune.cap import PowerCap
from wattune.errors import CapError, InputError, NoFeasiblePoint
from wattune.planning import plan
from wattune.point import OperatingPoint
from wattune.reporting.heat_maps import arrange
from wattune.server.dashboard.heatmap import SHADES, cap_steps, checked_cap, heatmaps, slider, step_at, strip
from wattune.server.dashboard.line_chart import LARGEST, ROWS, Chart, Line, colour, draw, ticks
from wattune.server.dashboard.responses import ago, embedded

TABLE, CURVE = samples.profile(), samples.efficiency()
GRID = arrange(TABLE)
STEPS = cap_steps(TABLE, CURVE)
ODD = [samples.other_actuator(limits=limits).profile for limits in (True, False)]

finite = st.floats(-1e6, 1e6, allow_nan=False)


def point_at(grid, table, place):
    row, column = place
    batch_size, micro = grid.rows[row]
    cell = grid.cells[row, column]
    assert (cell.batch_size, cell.micro_batch_size or cell.batch_size) == (batch_size, micro)
    return cell.point


@given(cap_w=st.floats(3.0, 7.0))
def test_chosen_point_equals_plan_under_any_cap(cap_w):
    step = step_at(STEPS, cap_w)
    try:
        wanted = plan(TABLE, CURVE, cap=PowerCap(cap_w))
    except CapError:
        assert step is None
        return
    assert step is not None
    assert step.chosen is not None
    assert point_at(GRID, TABLE, step.chosen) == wanted.point
    assert step.texts["power"] == f"{wanted.predicted_window_w:.2f} W"


@pytest.mark.parametrize("cell", TABLE.measured[::7], ids=lambda cell: f"{cell.power_peak_w:g} W")
def test_cap_equal_to_peak_is_feasible(cell):
    for cap_w in (cell.power_peak_w, math.nextafter(cell.power_peak_w, 0)):
        step = step_at(STEPS, cap_w)
        try:
            wanted = plan(TABLE, CURVE, cap=PowerCap(cap_w)).point
        except CapError:
            wanted = None
        assert (step and step.chosen and point_at(GRID, TABLE, step.chosen)) == wanted


@pytest.mark.parametrize("table", ODD, ids=["power limit", "no actuator"])
def test_power_limits_and_micro_batches_are_mapped(table):
    grid = arrange(table)
    for step in cap_steps(table, CURVE):
        assert step.chosen is not None
        assert point_at(grid, table, step.chosen) == plan(table, CURVE, cap=PowerCap(step.cap_w)).point


def test_nothing_is_chosen_if_no_run_reached_the_target():
    lost = samples.efficiency(censored=128).model_copy(update={"reference_batch_size": 64})
    only = TABLE.model_copy(update={"cells": tuple(c for c in TABLE.cells if c.batch_size == 128)})
    for step in cap_steps(only, lost):
        assert step.chosen is None
        assert "no proxy run reached the target" in step.texts["point"]
        with pytest.raises(NoFeasiblePoint):
            plan(only, lost, cap=PowerCap(step.cap_w))


def test_frontier_needs_no_curve():
    with_curve = [step.marked for step in STEPS]
    assert [step.marked for step in cap_steps(TABLE, None)] == with_curve
    assert all(step.chosen is None for step in cap_steps(TABLE, None))


def test_slider_spans_all_relevant_caps():
    low, high = slider(STEPS)
    assert step_at(STEPS, low) is None
    assert step_at(STEPS, high) is STEPS[-1]
    picks = strip(STEPS, low, high, GRID)
    assert picks[-1].end == 100
    assert all(left.end <= right.begin for left, right in pairwise(picks))
    for pick in picks:
        step = step_at(STEPS, low + (high - low) * (pick.begin + pick.end) / 200)
        assert GRID.rows[step.chosen[0]][0] == pick.batch_size


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "0", "-3", "1e7", "4,5", "5 W", "0x10"])
def test_cap_must_be_positive(text):
    with pytest.raises(InputError, match="positive number of watts"):
        checked_cap(text, 5.0)


def test_empty_cap_is_the_highest():
    assert checked_cap("", 5.0) == checked_cap(None, 5.0) == 5.0
    assert checked_cap("4.25", 5.0) == 4.25


def test_shades_rise_with_values():
    for heat in heatmaps(TABLE):
        squares = [square for _, row in heat.rows for square in row]
        assert len(squares) == len(GRID.rows) * len(GRID.columns)
        known = sorted((float(s.text), s.shade) for s in squares if s.shade is not None)
        assert [shade for _, shade in known] == sorted(shade for _, shade in known)
        assert {known[0][1], known[-1][1]} == {0, SHADES - 1}
        assert {s.hint for s in squares if s.shade is None} == {"does not fit in memory"}


@given(low=finite, width=st.floats(1e-6, 1e6), about=st.integers(1, 8))
def test_ticks_are_few_even_and_in_range(low, width, about):
    high = low + width
    found = ticks(low, high, about)
    if high <= low:
        return
    space = 1e-6 * max(abs(low), abs(high), width)
    assert all(low - space <= tick <= high + space for tick in found)
    assert len(found) <= about + 1
    gaps = [right - left for left, right in pairwise(found)]
    assert all(math.isclose(gap, gaps[0], rel_tol=1e-3, abs_tol=space) for gap in gaps)


@given(
    points=st.lists(
        st.tuples(st.integers(1, 10**6), st.floats(-10, 10) | st.floats(allow_nan=False, allow_infinity=False)),
        min_size=1,
        max_size=30,
    ),
    target=st.none() | st.floats(-10, 10) | st.floats(allow_nan=False, allow_infinity=False),
)
def test_drawing_stays_inside_the_frame(points, target):
    chart = Chart("t", "x", "y", [Line("a", sorted(points))], target)
    drawable = [y for _, y in points if abs(y) < LARGEST]
    drawings = draw(chart)
    assert bool(drawings) == bool(drawable)
    for drawn in drawings:
        numbers = [[float(n) for n in pair.split()] for pair in re.split("[ML]", drawn.paths[0][1])[1:]]
        assert len(numbers) == len(drawable)
        for x, y in numbers:
            assert drawn.left - 0.1 <= x <= drawn.right + 0.1
            assert drawn.top - 0.1 <= y <= drawn.bottom + 0.1
        for tick in drawn.y_ticks:
            assert drawn.top - 0.1 <= tick.at <= drawn.bottom + 0.1


def test_empty_chart_draws_nothing():
    assert draw(Chart("t", "x", "y", [])) == ()
    assert draw(Chart("t", "x", "y", [Line("a", [])])) == ()


def test_batch_sizes_have_distinct_colours():
    sizes = (4, 8, 16, 32, 64, 128)
    assert [colour(sizes, size) for size in sizes] == [0, 1, 2, 3, 4, 5]
    assert colour((8,), 8) == 0


def test_embedded_json_cannot_end_its_element():
    text = embedded({"says": "</script><script>alert(1)</script>&"})
    assert "<" not in text
    assert ">" not in text
    assert "&" not in text


@pytest.mark.parametrize(
    ("seconds_s", "text"),
    [
        (0, "just now"),
        (8, "8 s ago"),
        (119, "119 s ago"),
        (150, "2 min ago"),
        (7300, "2 h ago"),
        (200_000, "2 days ago"),
    ],
)
def test_elapsed_time_is_formatted(seconds_s, text):
    assert ago(seconds_s) == text


def test_plan_point_can_be_compared():
    assert OperatingPoint.of(8, clock_mhz=76.8) == TABLE.cells[12].point


@given(counts=st.lists(st.integers(1, 400), min_size=1, max_size=400))
def test_chart_table_is_bounded_and_has_line_ends(counts):
    lines = [Line(str(at), [(float(x), at + x / 2) for x in range(count)]) for at, count in enumerate(counts)]
    drawn = draw(Chart("", "x", "y", lines))[0]
    rows = drawn.rows
    assert drawn.points == sum(counts)
    assert len(rows) <= ROWS
    for line in lines[: ROWS // 2]:
        own = [(x, y) for name, x, y in rows if name == line.name]
        assert (own[0], own[-1]) == (line.points[0], line.points[-1])
        assert own == sorted(set(own))
        assert set(own) <= set(line.points)
