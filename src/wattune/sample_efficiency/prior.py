"""The prior of the samples to target per batch size, before any run.

Samples to a target grow as 1 + b / B_c with the batch size b and a critical batch size B_c (McCandlish et al. 2018,
arXiv 1812.06162, section 2: examples and steps to a target trade off along a hyperbola). Without knowledge of the
workload the prior of B_c is wide; a measured gradient noise scale, which that paper relates to B_c, narrows it. The
constants here come from a few small experiments of our own (two kinds of small models, batch sizes to 128); they are a
starting point and no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

CRITICAL: Final = 200.0
CRITICAL_SD: Final = 1.3
"""Median of the critical batch size over workloads, and the standard deviation of its logarithm."""

NOISE_OFFSET: Final = 0.3
NOISE_SD: Final = 0.9
"""ln(critical batch size) is ln(noise scale) + 0.3, with this standard deviation."""

SHAPE_SD: Final = 0.04
"""Standard deviation of ln(relative samples) between any two batch sizes that no critical batch size explains."""


def relative_samples(
    batch_sizes: Sequence[int],
    noise_scale: float | None = None,
    noise_sd: float = 0.0,
    *,
    reference: int | None = None,
) -> dict[int, tuple[float, float]]:
    """Map each batch size to the mean of its samples relative to ``reference``, and the sd of their logarithm.

    ``reference`` None is the largest. ``noise_scale``: the gradient noise scale in samples, ``noise_sd`` the standard
    deviation of its logarithm. Raises: ValueError if a size or the scale is not positive.
    """
    if not batch_sizes or min(batch_sizes) < 1 or (noise_scale is not None and not noise_scale > 0):
        raise ValueError("batch sizes and the noise scale must be positive")
    middle, sd = critical_batch_size(noise_scale, noise_sd)
    reference = max(batch_sizes) if reference is None else reference
    # A normal distribution in 41 steps of equal width, out to four standard deviations.
    steps = np.linspace(-4.0, 4.0, 41)
    weights = np.exp(-0.5 * steps**2)
    weights /= weights.sum()
    critical = np.exp(math.log(middle) + sd * steps)
    relative: dict[int, tuple[float, float]] = {}
    for size in batch_sizes:
        logs = np.log1p(size / critical) - np.log1p(reference / critical)
        mean = float(weights @ logs)
        variance = float(weights @ (logs - mean) ** 2)
        if size == reference:
            relative[size] = (1.0, 0.0)
        else:
            sd_ln = math.hypot(math.sqrt(variance), SHAPE_SD)
            relative[size] = (float(weights @ np.exp(logs)) * math.exp(SHAPE_SD**2 / 2), sd_ln)
    return relative


def critical_batch_size(noise_scale: float | None = None, noise_sd: float = 0.0) -> tuple[float, float]:
    """Median of the critical batch size, and the standard deviation of its logarithm."""
    if noise_scale is None:
        return CRITICAL, CRITICAL_SD
    precision, other = CRITICAL_SD**-2, 1 / (NOISE_SD**2 + noise_sd**2)
    mean = (precision * math.log(CRITICAL) + other * (math.log(noise_scale) + NOISE_OFFSET)) / (precision + other)
    return math.exp(mean), (precision + other) ** -0.5
