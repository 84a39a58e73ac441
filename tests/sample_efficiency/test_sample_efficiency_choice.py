from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sample_efficiency.test_sample_efficiency_posterior import SIZES, runs_of

from wattune.sample_efficiency.choice import choose, contenders
from wattune.sample_efficiency.posterior import Observation, fit

TIMES = {size: (math.log1p(24 / size), 0.01) for size in SIZES}


def test_the_best_has_the_least_product_of_time_and_samples() -> None:
    curve = fit(runs_of(150.0, SIZES, 4, sd=0.02), SIZES)
    choice = choose(curve, TIMES)
    product = {size: (1 + 24 / size) * (1 + size / 150) for size in SIZES}
    assert product[choice.best] <= 1.02 * min(product.values())
    assert sum(choice.p_best.values()) == pytest.approx(1.0)
    assert max(choice.p_best, key=choice.p_best.__getitem__) in (32, 64, 128)
    assert 0 < choice.expected_regret < 0.03
    assert choice.p_regret_over(0.0) >= choice.p_regret_over(0.02) >= choice.p_regret_over(0.5) == 0.0


def test_the_choice_is_deterministic() -> None:
    curve = fit(runs_of(150.0), SIZES)
    one, other = choose(curve, TIMES), choose(curve, TIMES)
    assert one.p_best == other.p_best
    assert np.array_equal(one.regrets, other.regrets)


def test_two_candidates_agree_with_the_normal_distribution() -> None:
    curve = fit(runs_of(150.0), SIZES)
    at = SIZES.index(32)
    times = {32: (-float(curve.mean[at]) - 0.03, 0.02), 128: (0.0, 0.01)}
    sd = math.sqrt(curve.covariance[at, at] + 0.02**2 + 0.01**2)
    choice = choose(curve, times)
    assert choice.best == 32
    below = 0.5 * math.erfc(0.03 / sd / math.sqrt(2))
    assert choice.p_best[128] == pytest.approx(below, abs=0.02)
    density = math.exp(-0.5 * (0.03 / sd) ** 2) / math.sqrt(2 * math.pi)
    assert choice.expected_regret == pytest.approx(sd * density - 0.03 * below, rel=0.25)


def test_more_runs_reduce_the_expected_regret() -> None:
    few, many = fit(runs_of(150.0), SIZES), fit(runs_of(150.0, SIZES, 10, sd=0.05), SIZES)
    assert choose(many, TIMES).expected_regret < choose(few, TIMES).expected_regret
    assert choose(many, TIMES, transfer=False).expected_regret < choose(many, TIMES).expected_regret


@settings(max_examples=25, deadline=None)
@given(st.floats(-8, 8))
def test_a_common_factor_of_the_times_changes_nothing(shift: float) -> None:
    curve = fit(runs_of(150.0), SIZES)
    moved = choose(curve, {size: (mean + shift, sd) for size, (mean, sd) in TIMES.items()})
    assert moved.best == choose(curve, TIMES).best
    assert moved.expected_regret == pytest.approx(choose(curve, TIMES).expected_regret, abs=1e-9)


def test_a_batch_size_that_never_reached_the_target_is_not_chosen() -> None:
    runs = [*runs_of(150.0, (16, 64)), Observation(128, 900.0, False)]
    times = {16: (1.0, 0.01), 64: (1.0, 0.01), 128: (-3.0, 0.01)}
    choice = choose(fit(runs, SIZES), times)
    assert choice.best == 16
    assert choice.p_best[128] > 0.9
    assert choice.expected_regret > 1.0
    with pytest.raises(ValueError, match="no batch size has both"):
        choose(fit(runs, SIZES), {128: (0.0, 0.0)})


def test_a_step_time_of_an_unknown_batch_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[5\]"):
        choose(fit([], SIZES), {5: (0.0, 0.0)})


def test_contenders_are_the_sizes_that_may_be_best() -> None:
    curve = fit(runs_of(150.0, SIZES, 3, sd=0.05), SIZES)
    left = contenders(curve, {size: (math.log1p(24 / size), 0.0) for size in SIZES})
    assert 4 not in left
    assert {32, 64} <= set(left)
    assert contenders(curve, {4: (0.0, 0.0)}) == (4,)
    assert contenders(curve, {}) == ()
