from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.search.observation import PointStats, SensorModel, Stretch
from wattune.search.surrogate import Mixture, PNorm, RowAndStepResidual, SmoothResidual

X = np.linspace(0.1, 1.0, 10)
SMOOTH = SmoothResidual(2 * X[:, None], 0.02)


SUM = np.stack([np.ones_like(X), 1 / X], axis=1)[None]
CONSTANT = np.stack([np.ones_like(X), np.zeros_like(X)], axis=1)[None]


def made(
    residual: SmoothResidual | RowAndStepResidual = SMOOTH, features: np.ndarray = SUM, **options: float
) -> Mixture:
    return Mixture(features, np.zeros((len(features), 2)), np.full(2, 2.0), residual, **options)


def stepped(row: np.ndarray | None = None) -> RowAndStepResidual:
    return RowAndStepResidual(np.zeros(10, dtype=np.intp) if row is None else row, np.full(10, 0.03), 0.01 * X[:, None])


def test_two_points_tell_a_sum_of_two_terms() -> None:
    x = np.linspace(0.1, 1.0, 10)
    logs = np.log(0.3 + 2.0 / x)
    model = made()
    at = np.array([0, 9])
    model.fit(at, logs[at], np.full(2, 1e-3))
    assert np.abs(model.mean - logs).max() < 0.05
    assert (np.abs(model.mean - logs) < 3 * model.sd + 1e-6).all()
    assert model.sd[0] < 0.002
    assert model.sd[5] > model.sd[0]


def test_a_part_that_changes_at_every_step_makes_what_lies_beyond_uncertain() -> None:
    sds = []
    for residual in (SMOOTH, stepped()):
        model = made(residual)
        at = np.arange(5)
        model.fit(at, np.log(0.3 + 2.0 / X[at]), np.full(5, 1e-3))
        sds.append(model.sd)
    assert sds[1][9] > 1.5 * sds[0][9]
    assert sds[1][2] < 0.01


def test_a_row_is_not_known_from_another_one() -> None:
    own = np.repeat([0, 1], 5)
    model = made(stepped(own), CONSTANT)
    model.fit(np.array([0, 1]), np.zeros(2), np.full(2, 1e-3))
    assert model.sd[5] > model.sd[2] + 0.01
    assert abs(model.covariance(0)[5]) < abs(model.covariance(0)[1]) + 1e-9


@given(
    at=st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True).map(np.array),
    logs=st.lists(st.floats(-1, 1), min_size=6, max_size=6).map(np.array),
)
def test_a_residual_is_a_covariance(at: np.ndarray, logs: np.ndarray) -> None:
    for residual in (SMOOTH, stepped(np.arange(10) % 3)):
        everywhere = np.arange(10)
        covariance = residual.between(everywhere, everywhere)
        assert np.allclose(covariance, covariance.T)
        assert np.allclose(np.diag(covariance), residual.variance)
        assert np.linalg.eigvalsh(covariance).min() > -1e-9
        model = made(residual)
        model.fit(at, logs[: len(at)], np.full(len(at), 0.1))
        assert np.allclose([model.covariance(i)[i] for i in range(10)], model.sd**2, atol=1e-9)


POSITIVE = st.floats(1e-3, 1e3)


@given(
    terms=st.lists(st.lists(POSITIVE, min_size=4, max_size=4), min_size=1, max_size=3).map(np.array),
    p=st.floats(1, 8),
    q=st.floats(1, 8),
)
def test_a_norm_lies_between_the_largest_part_and_the_sum_and_its_shares_are_its_slopes(
    terms: np.ndarray, p: float, q: float
) -> None:
    norm = PNorm(np.array([0, 0, 1, 2]), p, q, outer=1)
    value, shares = norm.sum(terms)
    assert (np.exp(value) >= norm.parts(terms).max(axis=1) * (1 - 1e-9)).all()
    assert (np.exp(value) <= terms.sum(axis=1) * (1 + 1e-9)).all()
    assert np.allclose(shares.sum(axis=1), 1.0)
    for term in range(4):
        up, down = terms.copy(), terms.copy()
        up[:, term] *= 1 + 1e-5
        down[:, term] /= 1 + 1e-5
        slope = (norm.sum(up)[0] - norm.sum(down)[0]) / (2 * np.log1p(1e-5))
        assert np.allclose(slope, shares[:, term], atol=1e-6)


def test_the_outer_groups_add_up_with_the_norm_of_the_others() -> None:
    norm = PNorm(np.array([0, 1, 2]), 2.0, 5.0, outer=1)
    assert np.exp(norm.sum(np.array([[3.0, 4.0, 5.0]]))[0]) == pytest.approx((2 * 5.0**5) ** 0.2)


def test_what_measurements_are_off_by_is_not_taken_for_the_quantity() -> None:
    logs = np.log(0.3 + 2.0 / X) + 0.05 * (-1.0) ** np.arange(10)
    at = np.arange(10)
    sharp = made()
    noisy = made(noise_sd=0.05)
    for model in (sharp, noisy):
        model.fit(at, logs, np.full(10, 1e-3))
    assert np.abs(noisy.mean - np.log(0.3 + 2.0 / X)).max() < 0.5 * np.abs(sharp.mean - np.log(0.3 + 2.0 / X)).max()
    assert noisy.evidence > sharp.evidence


def test_what_explains_the_measurements_counts_for_more() -> None:
    mixture, at = made(features=np.concatenate([SUM, CONSTANT])), np.array([0, 4, 9])
    mixture.fit(at, np.log(0.3 + 2.0 / X[at]), np.full(3, 1e-3))
    alone = made()
    alone.fit(at, np.log(0.3 + 2.0 / X[at]), np.full(3, 1e-3))
    assert np.allclose(mixture.mean, alone.mean, atol=1e-3)
    assert np.allclose(mixture.sd, alone.sd, atol=1e-3)


def test_models_that_explain_the_measurements_alike_disagree_elsewhere() -> None:
    mixture, at = made(features=np.concatenate([SUM, CONSTANT])), np.array([9])
    alone = [made(features=one) for one in (SUM, CONSTANT)]
    for model in (mixture, *alone):
        model.fit(at, np.zeros(1), np.full(1, 1e-3))
    assert mixture.sd[0] > max(model.sd[0] for model in alone) / 2
    assert mixture.sd[0] > 5 * mixture.sd[9]
    assert np.allclose([mixture.covariance(i)[i] for i in range(10)], mixture.sd**2, atol=1e-3)


def test_the_highest_power_is_the_mean_where_steps_are_even() -> None:
    readings = SensorModel(noise_w=0.03, window_s=0.4, period_s=0.4)
    draw = np.random.default_rng(1)
    seen = None
    for _ in range(30):
        values = 5.0 + 0.03 * draw.normal(size=5)
        one = PointStats.of(readings, Stretch(0.1, float(values.mean()), float(values.max()), 2.0))
        if seen is None:
            seen = one
        else:
            seen.add(one)
    assert seen is not None
    assert seen.times == 30
    assert seen.seconds == pytest.approx(60.0)
    highest_w, sd_w = seen.highest_w(readings, 0.03)
    assert highest_w == pytest.approx(5.0, abs=0.02)
    assert sd_w < 0.02


def test_the_highest_power_is_that_of_the_busiest_stretch() -> None:
    readings = SensorModel(noise_w=0.01, window_s=0.4, period_s=0.4)
    seen = PointStats.of(readings, Stretch(2.0, 5.0, 5.52, 10.0))
    highest_w, _ = seen.highest_w(readings, 0.01)
    assert highest_w == pytest.approx(5.5, abs=0.02)
