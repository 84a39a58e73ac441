from __future__ import annotations

import json
import math

import numpy as np
import pytest

from wattune.decisions.noise import EARLY_SD, FEWEST, LONGEST, Norms, early_noise_scale


def gradients(steps: int, *, scale: float, small: int, parts: int, seed: int = 0, width: int = 400) -> Norms:
    """Norms of made-up gradients whose noise scale is known: the first micro-batch against the whole batch."""
    draw, norms = np.random.default_rng(seed), Norms()
    true = np.full(width, 1 / math.sqrt(width))  # of norm 1, so that the variance of one sample is the scale
    for _ in range(steps):
        each = true + draw.normal(size=(parts, width)) * math.sqrt(scale / width / small)
        norms.add(small, float((each[0] ** 2).sum()), small * parts, float((each.mean(axis=0) ** 2).sum()))
    return norms


@pytest.mark.parametrize("scale", [10.0, 100.0, 1000.0])
def test_finds_the_noise_scale(scale: float) -> None:
    found = gradients(200, scale=scale, small=8, parts=8).estimate()
    assert found is not None
    assert abs(math.log(found.samples / scale)) < 4 * found.sd + 0.02
    assert found.sd < 0.3


def test_its_stated_spread_is_that_over_repetitions() -> None:
    found = [gradients(60, scale=100.0, small=8, parts=8, seed=seed).estimate() for seed in range(60)]
    logs = [math.log(one.samples) for one in found if one is not None]
    stated = [one.sd for one in found if one is not None]
    assert len(logs) == 60
    assert 0.6 < np.mean(stated) / np.std(logs) < 1.6
    assert abs(np.mean(logs) - math.log(100.0)) < 0.1


def test_is_not_known_after_a_few_steps_or_from_noise_alone() -> None:
    assert gradients(FEWEST - 1, scale=10.0, small=8, parts=4).estimate() is None
    norms = Norms()
    for _ in range(FEWEST):
        norms.add(8, 1.0, 32, 0.2)  # falls faster than noise alone would
    assert norms.estimate() is None


def test_overflowed_gradients_are_left_out() -> None:
    norms = gradients(50, scale=50.0, small=8, parts=4)
    before = norms.estimate()
    norms.add(8, math.inf, 32, 1.0)
    norms.add(8, 1.0, 32, math.nan)
    assert norms.estimate() == before


def test_only_the_latest_steps_count() -> None:
    norms = gradients(50, scale=10.0, small=8, parts=4)
    later = gradients(LONGEST, scale=1000.0, small=8, parts=4)
    for noise, signal in later.state_dict()["pairs"]:
        norms._pairs = [*norms._pairs[1 - LONGEST :], (noise, signal)]
    assert norms.estimate() == later.estimate()


def test_the_smaller_batch_comes_first() -> None:
    with pytest.raises(ValueError, match="smaller one first"):
        Norms().add(32, 1.0, 8, 1.0)


def test_goes_on_from_its_state() -> None:
    norms, other = gradients(30, scale=50.0, small=8, parts=4), Norms()
    other.load_state_dict(json.loads(json.dumps(norms.state_dict())))
    assert other.estimate() == norms.estimate()


def test_the_noise_that_a_training_begins_with_grows_with_the_critical_batch_size() -> None:
    one, other = early_noise_scale(100.0), early_noise_scale(300.0, 0.8)
    assert 0 < one.samples < 100.0
    assert other.samples == pytest.approx(3 * one.samples)
    assert (one.sd, other.sd) == (EARLY_SD, pytest.approx(math.hypot(EARLY_SD, 0.8)))
