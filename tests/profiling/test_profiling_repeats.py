"""Several measurements of one cell as one."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from wattune.profiling.repeats import merged
from wattune.records import ProfileCell

watts = some.floats(1.0, 10.0)
cells = some.builds(
    ProfileCell,
    batch_size=some.just(8),
    clock_mhz=some.just(100.0),
    step_s=some.floats(0.01, 2.0),
    step_std_s=some.floats(0.0, 0.1),
    power_mean_w=watts,
    power_std_w=some.floats(0.0, 0.5),
    power_peak_w=watts,
    steps=some.integers(1, 500),
)


def cell(batch_size=8, clock_mhz=100.0, step_s=0.1, power_w=4.0, **more) -> ProfileCell:
    return ProfileCell(
        batch_size=batch_size,
        clock_mhz=clock_mhz,
        step_s=step_s,
        power_mean_w=power_w,
        power_peak_w=power_w + 0.1,
        steps=10,
        **more,
    )


@given(some.lists(cells, min_size=2, max_size=4))
def test_one_cell_holds_all_that_its_probes_said(probes):
    found = [merged(order) for order in permutations(probes)]
    seconds = [p.step_s * p.steps for p in probes]
    for (one,) in found:
        assert one.probes == len(probes)
        assert one.steps == sum(p.steps for p in probes)
        assert one.step_s * one.steps == pytest.approx(sum(seconds))
        energy_j = sum(p.power_mean_w * s for p, s in zip(probes, seconds, strict=True))
        assert one.power_mean_w * sum(seconds) == pytest.approx(energy_j)
        assert one.power_peak_w == max(p.power_peak_w for p in probes)
        # Of all steps together: mean of the squares less the square of the mean.
        square = sum(p.steps * (p.step_std_s**2 + p.step_s**2) for p in probes) / one.steps - one.step_s**2
        assert one.step_std_s == pytest.approx(math.sqrt(max(0.0, square)), abs=1e-6)


def test_other_cells_stay_as_they_are_in_order():
    one, other, unfit = cell(16), cell(8), ProfileCell(batch_size=64, clock_mhz=100.0, out_of_memory=True)
    assert merged([unfit, one, other]) == (other, one, unfit)
    assert merged([cell(64), unfit]) == (unfit,)
