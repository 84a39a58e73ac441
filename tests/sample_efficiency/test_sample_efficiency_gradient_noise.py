from __future__ import annotations

import json
import math

import numpy as np
import pytest

from wattune.sample_efficiency.prior import MAX_STEPS, MIN_STEPS, GradientNorms


def gradients(steps: int, *, scale: float, small: int, parts: int, seed: int = 0, width: int = 400) -> GradientNorms:
    """Norms of synthetic gradients whose noise scale is known: the first micro-batch against the whole batch."""
    draw, norms = np.random.default_rng(seed), GradientNorms()
    true = np.full(width, 1 / math.sqrt(width))  # of norm 1, so that the variance of one sample is the scale
    for _ in range(steps):
        each = true + draw.normal(size=(parts, width)) * math.sqrt(scale / width / small)
        norms.add(small, float((each[0] ** 2).sum()), small * parts, float((each.mean(axis=0) ** 2).sum()))
    return norms


@pytest.mark.parametrize("scale", [10.0, 100.0, 1000.0])
def test_the_estimate_recovers_the_noise_scale(scale: float) -> None:
    estimate = gradients(200, scale=scale, small=8, parts=8).estimate()
    assert estimate is not None
    assert abs(math.log(estimate.samples / scale)) < 4 * estimate.sd + 0.02
    assert estimate.sd < 0.3


def test_the_stated_spread_matches_that_over_repetitions() -> None:
    estimates = [gradients(60, scale=100.0, small=8, parts=8, seed=seed).estimate() for seed in range(60)]
    logs = [math.log(estimate.samples) for estimate in estimates if estimate is not None]
    stated = [estimate.sd for estimate in estimates if estimate is not None]
    assert len(logs) == 60
    assert 0.6 < np.mean(stated) / np.std(logs) < 1.6
    assert abs(np.mean(logs) - math.log(100.0)) < 0.1


def test_no_estimate_after_few_steps_or_from_noise_alone() -> None:
    assert gradients(MIN_STEPS - 1, scale=10.0, small=8, parts=4).estimate() is None
    norms = GradientNorms()
    for _ in range(MIN_STEPS):
        norms.add(8, 1.0, 32, 0.2)  # falls faster than noise alone would
    assert norms.estimate() is None


def test_overflowed_gradients_are_ignored() -> None:
    norms = gradients(50, scale=50.0, small=8, parts=4)
    before = norms.estimate()
    norms.add(8, math.inf, 32, 1.0)
    norms.add(8, 1.0, 32, math.nan)
    assert norms.estimate() == before


def test_only_the_latest_steps_count() -> None:
    norms = gradients(50, scale=10.0, small=8, parts=4)
    later = gradients(MAX_STEPS, scale=1000.0, small=8, parts=4)
    for noise, signal in later.state_dict()["pairs"]:
        norms._pairs = [*norms._pairs[1 - MAX_STEPS :], (noise, signal)]
    assert norms.estimate() == later.estimate()


def test_the_smaller_batch_comes_first() -> None:
    with pytest.raises(ValueError, match="smaller one first"):
        GradientNorms().add(32, 1.0, 8, 1.0)


def test_norms_resume_from_their_state() -> None:
    norms, other = gradients(30, scale=50.0, small=8, parts=4), GradientNorms()
    other.load_state_dict(json.loads(json.dumps(norms.state_dict())))
    assert other.estimate() == norms.estimate()
