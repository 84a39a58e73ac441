from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from tests.sample_efficiency.test_sample_efficiency_posterior import SIZES, runs_of

from wattune.sample_efficiency.choice import P_SWITCH, LogTimes, choose, contenders
from wattune.sample_efficiency.mixture import size_correlation
from wattune.sample_efficiency.posterior import CurvePosterior, Observation, fit

TIMES = {size: (math.log1p(24 / size), 0.01) for size in SIZES}


def test_the_best_has_the_least_product_of_time_and_samples() -> None:
    curve = fit(runs_of(150.0, SIZES, 4, sd=0.02), SIZES)
    choice = choose(curve, TIMES)
    product = {size: (1 + 24 / size) * (1 + size / 150) for size in SIZES}
    assert product[choice.best] <= 1.02 * min(product.values())
    assert sum(choice.p_best.values()) == pytest.approx(1.0)
    assert max(choice.p_best, key=choice.p_best.__getitem__) in (32, 64, 128)
    assert 0 < choice.expected_regret < 0.03


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


# --------------------------------------------------------------------------------------------- the own batch size


def exact_p_faster(curve: CurvePosterior, times: LogTimes, rival: int, own: int) -> float:
    """P(T(rival) < T(own)) of the mixture in closed form: the sum of the components' normal distributions."""
    at, other = (curve.batch_sizes.index(size) for size in (rival, own))
    spreads = curve.spreads + curve.transfer_sd**2 * size_correlation(curve.batch_sizes)
    variances = spreads[:, at, at] + spreads[:, other, other] - 2 * spreads[:, at, other]
    means = curve.centres[:, at] - curve.centres[:, other] + times[rival][0] - times[own][0]
    sds = np.sqrt(variances + times[rival][1] ** 2 + times[own][1] ** 2)
    return float(curve.shares @ ndtr(-means / sds))


@settings(max_examples=30, deadline=None)
@given(
    st.floats(30, 2000),
    st.floats(0.0, 0.4),
    st.floats(2, 100),
    st.sampled_from(SIZES),
    st.integers(0, 1000),
    st.booleans(),
)
def test_no_switch_below_ninety_percent(
    critical: float, sd: float, half: float, own: int, draw: int, whole: bool
) -> None:
    draws = np.random.default_rng(draw)
    runs = [
        Observation(size, 1000 * (1 + size / critical) * math.exp(sd * draws.normal()), True, seed)
        for size in (4, 16, 32, 128)
        for seed in range(2)
    ]
    curve = fit(runs, SIZES, whole=whole)
    times = {size: (math.log1p(half / size), 0.01) for size in SIZES}
    without, choice = choose(curve, times), choose(curve, times, own=own)
    assert choice.own is not None
    assert choice.own.rival == without.best
    assert without.own is None
    if without.best == own:
        assert choice.best == own
        assert choice.own.p_faster is choice.own.gain is None
        return
    assert choice.own.p_faster is not None
    assert choice.own.gain is not None
    assert choice.own.p_faster == pytest.approx(exact_p_faster(curve, times, without.best, own), abs=0.03)
    assert choice.best == (without.best if choice.own.p_faster >= P_SWITCH else own)
    assert choice.own.gain < 1


def test_an_own_batch_size_that_never_reaches_the_target_is_not_kept() -> None:
    runs = [*runs_of(150.0, (16, 32, 64)), Observation(128, 3000.0, False, 0)]
    choice = choose(fit(runs, SIZES), TIMES, own=128)
    assert choice.own is None
    assert choice.best != 128
