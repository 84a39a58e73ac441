"""How sure a plan says it is."""

from __future__ import annotations

import math

import pytest
from tests.support.planning_tables import board, cell, curve

from wattune.cap import PowerCap
from wattune.planning import plan
from wattune.records import EfficiencyPoint, ProfileTable, SampleEfficiency


def sharp(sd: float, relative: dict[int, float]) -> SampleEfficiency:
    """A curve with a band of this standard deviation at every batch size but the reference."""
    factor = math.exp(1.6449 * sd)
    points = tuple(
        EfficiencyPoint(batch_size=b, relative_samples=r, low=r / (1 if b == max(relative) else factor),
                        high=r * (1 if b == max(relative) else factor), samples=1000.0)
        for b, r in relative.items()
    )  # fmt: skip
    return SampleEfficiency(workload="proxy", reference_batch_size=max(relative), points=points)


RELATIVE = {4: 0.42, 8: 0.35, 16: 0.4, 32: 0.5, 64: 0.7, 128: 1.0}


def test_the_better_the_curve_is_known_the_surer_is_the_choice():
    found = [plan(board(), sharp(sd, RELATIVE), cap=PowerCap(4.0)) for sd in (0.002, 0.05, 0.3)]
    assert [one.batch_size for one in found] == [found[0].batch_size] * 3
    sure = [one.p_best for one in found]
    lost = [one.expected_loss for one in found]
    assert sure == sorted(sure, reverse=True)
    assert lost == sorted(lost)
    assert sure[0] > 0.95
    assert lost[0] < 0.001
    assert lost[2] > 0.02


def test_the_covariance_counts_where_the_curve_has_one():
    """Errors that all batch sizes have in common change nothing."""
    sizes = sorted(RELATIVE)
    common = tuple(tuple(0.0 if 128 in (a, b) else 0.09 for b in sizes) for a in sizes)
    alone = tuple(tuple(0.09 if a == b != 128 else 0.0 for b in sizes) for a in sizes)
    made = [
        plan(board(), sharp(0.3, RELATIVE).model_copy(update={"covariance": rows}), cap=PowerCap(4.0))
        for rows in (common, alone)
    ]
    assert made[0].expected_loss < made[1].expected_loss / 3
    assert made[0].p_best > made[1].p_best


def test_a_curve_without_bands_does_not_tell():
    found = plan(board(), curve(), cap=PowerCap(4.0))
    assert found.p_best is None
    assert found.expected_loss is None


@pytest.mark.parametrize(("mean_w", "low", "high"), [(3.9, 0, 0.01), (3.99, 0.05, 0.6)])
def test_the_nearer_the_cap_the_likelier_it_is_broken(mean_w, low, high):
    one = cell(16, 500.0, 0.1, 4.0, mean_w).model_copy(update={"power_std_w": 0.05, "steps": 20})
    table = ProfileTable(device="a board", workload="target", cells=(one,), sensor_window_s=0.1)
    found = plan(table, sharp(0.1, {16: 1.0}), cap=PowerCap(4.0))
    assert low <= found.p_over_cap <= high
