"""Several measurements of one cell as one, and a board that changes meanwhile."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from wattune.profiling.repeats import DRIFT, corrected, merged
from wattune.records import AbortedProbe, ProfileCell

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


@given(some.floats(-0.2, 0.2), some.floats(-0.2, 0.2))
def test_what_came_before_a_change_is_rescaled_to_the_board_of_now(time, power):
    before, other = cell(), cell(16, step_s=0.2, power_w=5.0)
    stopped = AbortedProbe(batch_size=16, clock_mhz=200.0, cap_w=6.0, power_w=6.1)
    after = cell(step_s=0.1 * math.exp(time), power_w=4.0 * math.exp(power))
    found, notes = corrected([before, other, stopped, after])
    assert found[2] == stopped
    assert found[3] == after
    assert len(notes) == (abs(time) > DRIFT) + (abs(power) > DRIFT)
    if abs(time) > DRIFT:
        assert found[0].step_s == pytest.approx(after.step_s)
        assert found[1].step_s == pytest.approx(0.2 * math.exp(time * 2 / 3))  # a third of it had come by then
    else:
        assert found[1].step_s == 0.2
    if abs(power) > DRIFT:
        assert found[0].power_mean_w == pytest.approx(after.power_mean_w)
        assert found[1].power_peak_w == pytest.approx(5.1 * math.exp(power * 2 / 3))


def test_scatter_is_no_drift():
    noisy = {"power_std_w": 0.2}
    assert corrected([cell(**noisy), cell(power_w=4.15, **noisy)])[1] == ()
    assert corrected([])[1] == ()
