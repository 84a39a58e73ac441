from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.support.planning_tables import board, cell, curve, problems

from wattune.cap import PowerCap, SensorLimit
from wattune.errors import CapError, RecordError
from wattune.planning import pick, plan
from wattune.records import ProfileCell, ProfileTable, SampleEfficiency


def brute_force(
    profile: ProfileTable, efficiency: SampleEfficiency, cap_w: float, margin_w: float
) -> ProfileCell | None:
    feasible = []
    for c in profile.cells:
        relative = efficiency.at(c.batch_size).relative_samples
        if relative is not None and c.power_peak_w + margin_w <= cap_w:
            time = c.step_s / c.batch_size * relative
            feasible.append((time, time * c.power_mean_w, c.power_peak_w, -c.batch_size, c.clock_mhz, c))
    return min(feasible, key=lambda entry: entry[:5])[5] if feasible else None


def check(problem: tuple[ProfileTable, SampleEfficiency, float, float]) -> None:
    profile, efficiency, cap_w, margin_w = problem
    best = brute_force(profile, efficiency, cap_w, margin_w)
    if best is None:
        assert pick("wattune", profile, efficiency, SensorLimit(cap_w, margin_w=margin_w)) is None
        with pytest.raises((CapError, RecordError)):
            plan(profile, efficiency, cap=PowerCap(cap_w, margin_w=margin_w, window="peak"))
        return
    found = plan(profile, efficiency, cap=PowerCap(cap_w, margin_w=margin_w, window="peak"))
    assert found.point == best.point
    assert found.relative_time == best.step_s / best.batch_size * efficiency.at(best.batch_size).relative_samples
    assert [c.why_not for c in found.candidates].count(None) == 1
    assert next(c for c in found.candidates if c.why_not is None).point == best.point
    assert len(found.candidates) == len(profile.cells)


@settings(max_examples=10 * settings().max_examples, derandomize=True)
@given(problems())
def test_plan_equals_brute_force_on_arbitrary_tables(problem):
    check(problem)


@settings(derandomize=True)
@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_the_cells_does_not_matter(problem, random):
    profile, efficiency, cap_w, margin_w = problem
    assume(brute_force(profile, efficiency, cap_w, margin_w) is not None)
    cells = list(profile.cells)
    random.shuffle(cells)
    shuffled = profile.model_copy(update={"cells": tuple(cells)})
    plans = [plan(p, efficiency, cap=PowerCap(cap_w, margin_w=margin_w)) for p in (profile, shuffled)]
    assert plans[0].point == plans[1].point
    assert plans[0].candidates == plans[1].candidates


def test_the_cap_is_exact_and_the_margin_is_added():
    profile = ProfileTable(device="d", workload="w", cells=(cell(8, 1, 2.0, 3.0), cell(8, 2, 1.0, 4.5)))
    efficiency = curve({8: 1.0})
    for margin_w, cap_w, clock_mhz in ((0.0, 4.5, 2), (0.0, math.nextafter(4.5, 0), 1), (0.1, 4.5, 1)):
        assert plan(profile, efficiency, cap=PowerCap(cap_w, margin_w=margin_w, window="peak")).clock_mhz == clock_mhz
    assert plan(profile, efficiency, cap=PowerCap(None, margin_w=0.1)).clock_mhz == 2


def test_a_cap_below_everything_names_the_lowest_point():
    with pytest.raises(CapError) as caught:
        plan(board(), curve(), cap=PowerCap(1.5, window="peak"))
    assert "1.5 W" in str(caught.value)
    lowest = min(board().cells, key=lambda c: c.power_peak_w)
    assert f"{lowest.power_peak_w:.4g} W, with batch size 4 at 76.8 MHz" in str(caught.value)
    assert "\n" not in str(caught.value)
