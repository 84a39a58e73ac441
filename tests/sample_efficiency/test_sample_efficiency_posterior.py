from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattune.sample_efficiency.posterior import CurvePosterior, Observation, fit
from wattune.sample_efficiency.prior import critical_batch_size

SIZES = (4, 8, 16, 32, 64, 128)


def runs_of(
    critical: float = 150.0,
    sizes: tuple[int, ...] = (16, 64, 128),
    seeds: int = 1,
    *,
    sd: float = 0.0,
    common_sd: float = 0.0,
    bumps: dict[int, float] | None = None,
    draw: int = 0,
) -> list[Observation]:
    """Runs on 1000 (1 + b / critical), times exp(bump), a factor per seed and a factor per run."""
    draws = np.random.default_rng(draw)
    shared = common_sd * draws.standard_normal(seeds)
    return [
        Observation(
            size,
            1000 * (1 + size / critical) * math.exp((bumps or {}).get(size, 0) + shared[seed] + sd * draws.normal()),
            True,
            seed,
        )
        for seed in range(seeds)
        for size in sizes
    ]


def ratio(curve: CurvePosterior, size: int) -> float:
    return float(np.exp(curve.mean[SIZES.index(size)]))


some_runs = st.lists(
    st.builds(
        Observation,
        batch_size=st.sampled_from(SIZES),
        samples=st.floats(500, 5000),
        reached=st.booleans(),
        seed=st.one_of(st.none(), st.integers(0, 3)),
        spacing=st.just(0.0),
    ),
    min_size=1,
    max_size=10,
).filter(lambda runs: any(run.reached for run in runs))


def test_three_runs_determine_the_curve_between_and_below_them() -> None:
    curve = fit(runs_of(150.0), SIZES)
    assert curve.reference == 128
    for size in SIZES:
        truth = (1 + size / 150) / (1 + 128 / 150)
        assert ratio(curve, size) == pytest.approx(truth, rel=0.06)
        low, high = curve.band(size)
        assert low <= truth <= high
    median, low, high = curve.critical_batch_size
    assert low < 150 < high
    assert low < median < high
    assert not curve.misfit


def test_the_posterior_without_runs_is_the_prior() -> None:
    curve = fit([], SIZES)
    assert curve.reference == 128
    assert curve.critical_batch_size[0] == pytest.approx(critical_batch_size(128)[0], rel=0.01)
    assert all(a < b for a, b in zip(curve.mean, curve.mean[1:], strict=False))


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(-0.4, 0.4), min_size=6, max_size=6), st.integers(0, 100))
def test_many_runs_reduce_the_curve_to_their_means(bumps: list[float], draw: int) -> None:
    runs = runs_of(150.0, SIZES, 100, sd=0.1, bumps=dict(zip(SIZES, bumps, strict=True)), draw=draw)
    curve = fit(runs, SIZES)
    means = np.array([np.mean([math.log(run.samples) for run in runs if run.batch_size == b]) for b in SIZES])
    assert curve.mean == pytest.approx(means - means[-1], abs=0.025)
    assert np.sqrt(np.diag(curve.proxy_covariance)).max() < 0.025
    assert curve.noise_sd == pytest.approx(0.1, rel=0.4)


def test_runs_that_follow_no_curve_are_a_misfit_and_their_means_count() -> None:
    bumps = {8: 0.4, 16: -0.4, 32: 0.4, 64: -0.4}
    runs = runs_of(150.0, SIZES, 3, sd=0.05, bumps=bumps)
    curve = fit(runs, SIZES)
    assert curve.misfit
    for size in SIZES:
        truth = (1 + size / 150) / (1 + 128 / 150) * math.exp(bumps.get(size, 0.0))
        assert ratio(curve, size) == pytest.approx(truth, rel=0.1)
    smooth = runs_of(150.0, SIZES, 3, sd=0.05)
    assert not fit(smooth, SIZES).misfit
    rough, sure = (fit([run for run in some if run.batch_size != 8], SIZES) for some in (runs, smooth))
    assert rough.proxy_covariance[1, 1] > 4 * sure.proxy_covariance[1, 1]


@settings(max_examples=30, deadline=None)
@given(some_runs, st.floats(0.01, 100))
def test_a_common_factor_changes_nothing_but_the_level(runs: list[Observation], factor: float) -> None:
    curve = fit(runs, SIZES)
    scaled = fit([run._replace(samples=run.samples * factor) for run in runs], SIZES)
    assert scaled.mean == pytest.approx(curve.mean, abs=1e-6)
    assert scaled.covariance == pytest.approx(curve.covariance, abs=1e-6)
    assert scaled.log_samples == pytest.approx(curve.log_samples + math.log(factor), abs=1e-6)
    assert scaled.critical_batch_size == pytest.approx(curve.critical_batch_size, rel=1e-5)


@settings(max_examples=30, deadline=None)
@given(some_runs, st.randoms(use_true_random=False))
def test_the_order_of_the_runs_changes_nothing(runs: list[Observation], random) -> None:
    curve = fit(runs, SIZES)
    shuffled = list(runs)
    random.shuffle(shuffled)
    again = fit(shuffled, SIZES)
    assert np.array_equal(again.mean, curve.mean)
    assert np.array_equal(again.covariance, curve.covariance)


@given(st.sampled_from(SIZES), st.floats(100, 4000), st.integers(0, 50))
def test_a_censored_run_never_lowers_the_estimate(size: int, ended: float, draw: int) -> None:
    runs = runs_of(150.0, (16, 64, 128), 2, sd=0.1, draw=draw)
    place = SIZES.index(size)
    before = fit(runs, SIZES).log_samples[place]
    after = fit([*runs, Observation(size, ended, False)], SIZES).log_samples[place]
    assert after >= before - 0.002


def test_a_censored_run_is_only_a_lower_bound() -> None:
    runs = runs_of(150.0)
    low, high = (fit([*runs, Observation(4, ended, False)], SIZES) for ended in (300.0, 1500.0))
    at = SIZES.index(4)
    assert low.log_samples[at] == pytest.approx(fit(runs, SIZES).log_samples[at], abs=1e-3)
    assert high.log_samples[at] > math.log(1300)
    assert high.lost == {4}
    assert high.censored[4] == high.runs[4] == 1


def test_a_longer_censored_run_raises_the_estimate() -> None:
    runs = runs_of(150.0, (16, 64))
    curves = [fit([*runs, Observation(128, ended, False)], SIZES) for ended in np.geomspace(1000, 20000, 25)]
    logs = np.array([curve.log_samples[-1] for curve in curves])
    assert (np.diff(logs) > -0.01).all()
    assert logs[-1] > math.log(10000)
    assert not curves[0].misfit
    assert curves[-1].misfit


def test_censored_runs_are_treated_without_bias() -> None:
    # Half of the runs at 128 are cut off at the median: the mean of ln N is still that of all runs.
    errors = []
    for draw in range(20):
        runs = runs_of(150.0, SIZES, 10, sd=0.12, draw=draw)
        cut = 1000 * (1 + 128 / 150)
        cut_off = [
            run._replace(samples=cut, reached=False) if run.batch_size == 128 and run.samples > cut else run
            for run in runs
        ]
        errors.append(fit(cut_off, SIZES).log_samples[-1] - math.log(cut))
    assert abs(np.mean(errors)) < 0.02


def test_the_reference_is_the_largest_size_that_reached_the_target() -> None:
    curve = fit([*runs_of(150.0, (16, 64)), Observation(128, 4000, False)], SIZES)
    assert curve.reference == 64
    assert curve.band(64) == (1.0, 1.0)
    assert ratio(curve, 128) > 1.5


def test_draws_match_mean_and_covariance_and_are_reproducible() -> None:
    curve = fit(runs_of(150.0), SIZES)
    draws = curve.draws(20000, seed=3)
    assert draws.shape == (20000, 6)
    assert draws.mean(axis=0) == pytest.approx(curve.mean, abs=5e-3)
    assert np.cov(draws.T, bias=True) == pytest.approx(curve.covariance, rel=0.1, abs=1e-3)
    assert np.array_equal(draws, curve.draws(20000, seed=3))
    assert not np.array_equal(draws, curve.draws(20000, seed=4))
    assert np.all(draws[:, -1] == 0.0)


def test_the_transfer_widens_the_band() -> None:
    target = fit(runs_of(150.0, SIZES, 4, sd=0.05), SIZES)
    proxy = replace(target, transfer_sd=0.0)
    assert np.array_equal(proxy.covariance, target.proxy_covariance)
    assert (np.diag(target.covariance)[:-1] > np.diag(proxy.covariance)[:-1]).all()
    for size in SIZES[:-1]:
        inner, outer = proxy.band(size), target.band(size)
        assert outer[0] < inner[0] < ratio(target, size) < inner[1] < outer[1]


def test_the_band_widens_with_the_ratio_of_the_models() -> None:
    runs = runs_of(150.0, SIZES, 2, sd=0.1)
    like, twice, larger, smaller = (fit(runs, SIZES, ratio=ratio) for ratio in (1.0, 2.0, 14.0, 1 / 14))
    assert [round(curve.transfer_sd, 2) for curve in (like, twice, larger, smaller)] == [0.05, 0.12, 0.4, 0.4]
    assert like.band(4)[0] > twice.band(4)[0] > larger.band(4)[0]
    assert np.array_equal(like.proxy_covariance, larger.proxy_covariance)


def test_the_common_effect_of_a_seed_cancels_in_the_shape() -> None:
    runs = runs_of(150.0, SIZES, 3, sd=0.02, common_sd=0.3, draw=1)
    seeded, unseeded = fit(runs, SIZES), fit([run._replace(seed=None) for run in runs], SIZES)
    assert seeded.own_sd < seeded.noise_sd / 1.5
    assert np.trace(seeded.proxy_covariance) < 0.6 * np.trace(unseeded.proxy_covariance)


def test_a_coarse_grid_of_evaluations_widens_the_posterior() -> None:
    runs = runs_of(150.0, SIZES, 3)
    coarse = fit([run._replace(spacing=0.2) for run in runs], SIZES)
    assert np.trace(coarse.proxy_covariance) > 1.5 * np.trace(fit(runs, SIZES).proxy_covariance)


@pytest.mark.parametrize(
    ("runs", "sizes", "says"),
    [
        ([], (), "must be positive"),
        ([], (0, 4), "must be positive"),
        ([Observation(4, 0.0)], SIZES, "samples of a run must be positive"),
        ([Observation(4, math.nan)], SIZES, "samples of a run must be positive"),
        ([Observation(5, 100.0)], SIZES, r"\[5\]"),
        ([Observation(4, 100.0, False)], SIZES, "no run reached"),
    ],
)
def test_invalid_runs_and_sizes_are_refused(runs: list[Observation], sizes: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        fit(runs, sizes)


def test_more_runs_narrow_the_critical_batch_size() -> None:
    runs = [Observation(b, 1000.0 * (1 + b / 50), True, seed) for b in SIZES for seed in range(6)]
    before, few, many = (fit(some, SIZES) for some in ([], runs[::6], runs))
    assert before.critical_sd == pytest.approx(1.3, rel=0.05)
    assert many.critical_sd < few.critical_sd < before.critical_sd


# ------------------------------------------------------------------------------------------------------------- clumps


def test_the_smaller_of_two_clumps_is_left_out() -> None:
    runs = [*runs_of(150.0, (16, 64)), *(Observation(128, n, True, s) for s, n in enumerate((1850, 1900, 9000)))]
    curve = fit(runs, SIZES)
    assert curve.left_out == (Observation(128, 9000, True, 2),)
    assert curve.runs[128] == 3
    assert np.array_equal(curve.mean, fit(runs[:-1], SIZES).mean)


@pytest.mark.parametrize("odd", [300.0, 12000.0])
def test_of_two_equal_clumps_the_one_off_the_curve_is_left_out(odd: float) -> None:
    runs = [*runs_of(150.0, (16, 32, 64)), Observation(128, 1850, True, 0), Observation(128, odd, True, 1)]
    assert fit(runs, SIZES).left_out == (Observation(128, odd, True, 1),)


def test_a_run_that_missed_the_target_is_not_left_out() -> None:
    runs = [*runs_of(150.0, (16, 32, 64)), Observation(128, 1850, True, 0)]
    missed = fit([*runs, Observation(128, 20000, False, 1)], SIZES)
    assert missed.left_out == ()
    assert missed.mean[-2] < fit(runs, SIZES).mean[-2]


def test_seeds_and_coarse_evaluations_form_no_clumps() -> None:
    assert fit(runs_of(150.0, SIZES, 4, sd=0.3), SIZES).left_out == ()
    epochs = [Observation(128, n, True, s, 1 / n / math.sqrt(12)) for s, n in enumerate((1.0, 3.0))]
    assert fit([*epochs, Observation(16, 2.0, True, 0, 0.14)], SIZES).left_out == ()


@given(st.floats(0.01, 0.2), st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_draws_have_the_band_of_the_mixture(sd: float, seed: int) -> None:
    curve = fit(runs_of(150.0, sd=sd), SIZES)
    draws = np.exp(curve.draws(4000, seed=seed))
    for place, size in enumerate(SIZES):
        low, high = curve.band(size)
        assert 0.07 < np.mean((draws[:, place] < low) | (draws[:, place] > high)) < 0.13 or low == high


def test_the_memory_of_a_fit_grows_no_faster_than_its_runs() -> None:
    def peak(seeds: int) -> int:
        runs = runs_of(seeds=seeds)
        tracemalloc.start()
        fit(runs, (16, 64, 128))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(1600) < 6 * peak(400)  # four times the runs and seeds
