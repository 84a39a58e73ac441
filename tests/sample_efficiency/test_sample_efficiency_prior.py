from __future__ import annotations

import math
from itertools import pairwise

import pytest

from wattune.sample_efficiency.prior import critical_batch_size, relative_samples

SIZES = (4, 8, 16, 32, 64, 128, 256)


def test_larger_batches_need_more_samples_and_the_reference_one() -> None:
    relative = relative_samples(SIZES)
    assert relative[256] == (1.0, 0.0)
    means = [relative[size][0] for size in SIZES]
    assert all(a < b for a, b in pairwise(means))


def test_uncertainty_grows_with_distance_from_the_reference() -> None:
    relative = relative_samples(SIZES, reference=32)
    assert relative[32] == (1.0, 0.0)
    assert relative[256][1] > relative[64][1] > 0
    assert relative[4][1] > relative[16][1] > 0


@pytest.mark.parametrize("scale", [20.0, 200.0, 5000.0])
def test_a_noise_scale_narrows_and_moves_the_critical_batch_size(scale: float) -> None:
    middle, sd = critical_batch_size(128, scale)
    assert sd < critical_batch_size(128)[1]
    assert (middle > 200) == (scale * math.exp(0.3) > 200)
    wide = critical_batch_size(128, scale, noise_sd=3.0)
    assert wide[1] > sd
    assert abs(math.log(wide[0] / 200)) < abs(math.log(middle / 200)) or scale == 200.0


def test_the_critical_batch_size_grows_with_the_largest_batch_size_beyond_the_usual_ones() -> None:
    assert critical_batch_size(8) == critical_batch_size(128) == (200.0, 1.3)
    assert critical_batch_size(65536) == (200.0 * 512, 1.3)


def test_a_large_noise_scale_makes_large_batches_cheap() -> None:
    small, large = (relative_samples((32, 256), scale, reference=32)[256][0] for scale in (10.0, 1e5))
    assert large < small
    assert large < 1.5


def test_the_mean_agrees_with_a_sum_over_critical_batch_sizes() -> None:
    # Against a sum over draws of the critical batch size.
    middle, sd = critical_batch_size(128, 150.0)
    grid = [middle * math.exp(sd * (k - 500) / 100) for k in range(1001)]
    weights = [math.exp(-0.5 * ((k - 500) / 100) ** 2) for k in range(1001)]
    ratios = [(1 + 128 / c) / (1 + 16 / c) for c in grid]
    mean = sum(w * r for w, r in zip(weights, ratios, strict=True)) / sum(weights)
    assert relative_samples((16, 128), 150.0, reference=16)[128][0] == pytest.approx(mean, rel=2e-3)


@pytest.mark.parametrize(("sizes", "scale"), [((), None), ((0, 4), None), ((4,), 0.0), ((4,), math.nan)])
def test_invalid_batch_sizes_and_scales_are_refused(sizes: tuple[int, ...], scale: float | None) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        relative_samples(sizes, scale)
