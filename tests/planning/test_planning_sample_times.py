"""How fast each batch size is below a cap, for the estimator."""

from __future__ import annotations

import math

import pytest
from tests.support.planning_tables import CLOCKS, board

from wattune.cap import NO_LIMIT, SensorLimit
from wattune.planning import log_step_times
from wattune.records import AbortedProbe


@pytest.mark.parametrize("cap_w", [2.6, 3.5, 4.5, None])
def test_each_batch_size_at_its_fastest_point_below_the_cap(cap_w):
    table = board()
    found = log_step_times(table, SensorLimit(cap_w))
    for size in table.batch_sizes:
        kept = [c for c in table.cells if c.batch_size == size and (cap_w is None or c.power_peak_w <= cap_w)]
        assert (size in found) == bool(kept)
        if kept:
            mean, sd = found[size]
            assert math.exp(mean) == pytest.approx(min(c.step_s / size for c in kept))
            assert 0 < sd < 0.01
    assert log_step_times(table, SensorLimit(cap_w, 100.0)).keys() <= (set() if cap_w else found.keys())


def test_a_row_that_a_guided_profile_did_not_climb_may_be_faster():
    table = board()
    few = tuple(c for c in table.cells if c.batch_size != 8 or c.clock_mhz == CLOCKS[0])
    whole = log_step_times(table, NO_LIMIT)
    guided = table.model_copy(update={"cells": few, "strategy": "guided"})
    mean, sd = log_step_times(guided, NO_LIMIT)[8]
    assert mean - 2.33 * sd <= whole[8][0] < mean
    assert log_step_times(guided, NO_LIMIT)[16] == whole[16]
    # Where a probe was stopped right above, there is nothing to be had.
    stopped = (AbortedProbe(batch_size=8, clock_mhz=CLOCKS[1], cap_w=9.0, power_w=9.1),)
    assert log_step_times(guided.model_copy(update={"aborted": stopped}), NO_LIMIT)[8][1] < 0.01
