from __future__ import annotations

import numpy as np
import pytest

from wattune.search.observation import PointStats, SensorModel
from wattune.search.surrogate import Surrogate


def made(bends: bool = False) -> Surrogate:
    x = np.linspace(0.1, 1.0, 10)
    features = np.stack([np.ones_like(x), 1 / x], axis=1)
    return Surrogate(features, np.zeros(2), np.full(2, 2.0), 2 * x[:, None], 0.02, 0.5 * x if bends else None)


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


def test_what_is_known_stays_what_it_was_told() -> None:
    model = made(bends=True)
    at = np.array([1, 4, 7])
    model.fit(at, np.array([2.0, 1.0, 0.7]), np.full(3, 1e-4))
    assert model.mean[at] == pytest.approx([2.0, 1.0, 0.7], abs=1e-3)
    assert np.allclose([model.covariance(i)[i] for i in range(10)], model.sd**2, atol=1e-9)


def test_a_slope_that_may_bend_makes_what_lies_beyond_uncertain() -> None:
    x = np.linspace(0.1, 1.0, 10)
    sds = []
    for bends in (False, True):
        model = made(bends)
        at = np.arange(5)
        model.fit(at, np.log(0.3 + 2.0 / x[at]), np.full(5, 1e-3))
        sds.append(model.sd)
    assert sds[1][9] > 1.5 * sds[0][9]
    assert sds[1][2] < 1.5 * sds[0][2] + 1e-4


def test_the_highest_power_is_the_mean_where_steps_are_even() -> None:
    readings = SensorModel(noise_w=0.03, window_s=0.4, period_s=0.4)
    draw = np.random.default_rng(1)
    seen = None
    for _ in range(30):
        values = 5.0 + 0.03 * draw.normal(size=5)
        one = PointStats.of(readings, 0.1, float(values.mean()), float(values.max()), 2.0)
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
    seen = PointStats.of(readings, 2.0, 5.0, 5.52, 10.0)
    highest_w, _ = seen.highest_w(readings, 0.01)
    assert highest_w == pytest.approx(5.5, abs=0.02)
