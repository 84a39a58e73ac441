"""Fit of the loss between supply and sensor to pairs of readings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.doctor import Pair, fit
from wattune.errors import InputError


def pairs(module_w, supply_w):
    return [Pair(f"load {i}", m, s) for i, (m, s) in enumerate(zip(module_w, supply_w, strict=True))]


@given(st.floats(0, 20), st.floats(0.6, 1.0), st.floats(1, 30), st.floats(1.5, 5))
def test_an_exact_line_is_recovered(other_w, efficiency, least_w, ratio):
    module = [least_w * (1 + (ratio - 1) * share) for share in (0, 0.3, 0.8, 1)]
    calibration = fit(pairs(module, [(m + other_w) / efficiency for m in module]))
    assert calibration.efficiency == pytest.approx(efficiency, rel=1e-6)
    assert calibration.other_w == pytest.approx(other_w, abs=1e-5)
    assert calibration.residual_w < 1e-6


@given(st.lists(st.floats(-0.05, 0.05), min_size=4, max_size=4))
def test_noise_shows_in_the_residual_and_never_in_an_impossible_figure(noise):
    module = [4.0, 6.0, 8.0, 10.0]
    calibration = fit(pairs(module, [m / 0.999 + 0.02 + e for m, e in zip(module, noise, strict=True)]))
    assert 0 < calibration.efficiency <= 1
    assert calibration.other_w >= 0
    assert calibration.residual_w <= calibration.largest_w <= 0.2


@pytest.mark.parametrize(
    ("module", "supply"),
    [([5.0, 5.1, 5.2], [7.0, 7.1, 7.2]), ([5.0, 9.0], [7.0, 12.0]), ([5.0, 5.0, 5.0], [7.0, 7.0, 7.0])],
)
def test_loads_that_do_not_differ_are_refused(module, supply):
    with pytest.raises(InputError, match="do not differ enough"):
        fit(pairs(module, supply))


@pytest.mark.parametrize(
    "supply",
    [
        [12.0, 9.0, 6.0],  # the other way round
        [30.0, 30.0, 30.0],  # another machine's
        [2.5, 4.0, 5.5],  # half of it: in mA, or the other field
        [6.0, 30.0, 14.0],  # anything
    ],
)
def test_a_meter_that_does_not_follow_is_refused(supply):
    with pytest.raises(InputError, match="does not follow the board"):
        fit(pairs([5.0, 8.0, 11.0], supply))
