"""The prior of the samples to target per batch size, and the gradient noise scale that narrows it.

Samples to a target grow as 1 + b / B_c with the batch size b and a critical batch size B_c (McCandlish et al. 2018,
arXiv 1812.06162, section 2: examples and steps to a target trade off along a hyperbola). Without knowledge of the
workload the prior of B_c is wide; a measured gradient noise scale, which that paper relates to B_c, narrows it. The
constants here come from a few small experiments of our own (two kinds of small models, batch sizes to 128); they are a
starting point and no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

CRITICAL: Final = 200.0
CRITICAL_SD: Final = 1.3
"""Median of the critical batch size over workloads, and the standard deviation of its logarithm, for batch sizes to
``USUAL_LARGEST``.

The median grows in proportion to a larger largest batch size: nobody offers batch sizes that are far beyond the
critical one."""

USUAL_LARGEST: Final = 128

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
    middle, sd = critical_batch_size(max(batch_sizes), noise_scale, noise_sd)
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


def critical_batch_size(largest: int, noise_scale: float | None = None, noise_sd: float = 0.0) -> tuple[float, float]:
    """Median of the critical batch size, and the standard deviation of its logarithm, where ``largest`` is the largest
    batch size."""
    median = CRITICAL * max(1.0, largest / USUAL_LARGEST)
    if noise_scale is None:
        return median, CRITICAL_SD
    precision, other = CRITICAL_SD**-2, 1 / (NOISE_SD**2 + noise_sd**2)
    mean = (precision * math.log(median) + other * (math.log(noise_scale) + NOISE_OFFSET)) / (precision + other)
    return math.exp(mean), (precision + other) ** -0.5


MIN_STEPS: Final = 8
"""Steps before there is an estimate."""

MAX_STEPS: Final = 512
"""Most recent steps that count: the scale grows during training, so older ones are dropped."""


class NoiseScale(NamedTuple):
    """The gradient noise scale in samples, and the standard deviation of its logarithm."""

    samples: float
    sd: float


class GradientNorms:
    """Squared gradient norms, one pair per optimizer step.

    The expected squared norm of a gradient over B samples is |G|^2 + tr(Sigma) / B: the true gradient's, plus the noise
    of the samples. Two sizes therefore give both terms; their ratio tr(Sigma) / |G|^2 is the noise scale, in samples.
    Each step gives an unbiased estimate of either term, but their ratio in one step is useless, so numerator and
    denominator are averaged over steps separately, and divided last.

    Source: McCandlish et al. 2018, arXiv 1812.06162, section 2.2 and appendix A.1 (the simple noise scale).
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[float, float]] = []

    def add(self, small: int, small_square: float, big: int, big_square: float) -> None:
        """Add the squared norms of the mean gradients over ``small`` and over ``big`` samples of the same step.

        The smaller batch may be part of the larger one (its first micro-batch, say), and ``small_square`` the mean
        over several such parts. Norms that are not finite are ignored: a scaled gradient may overflow.
        Raises: ValueError if ``small`` is not the smaller one.
        """
        if not 0 < small < big:
            raise ValueError("two batches of different size, the smaller one first")
        if math.isfinite(small_square) and math.isfinite(big_square):
            signal = (big * big_square - small * small_square) / (big - small)
            noise = (small_square - big_square) / (1 / small - 1 / big)
            self._pairs = [*self._pairs[1 - MAX_STEPS :], (noise, signal)]

    def estimate(self) -> NoiseScale | None:
        """The noise scale over the steps so far; None while they are too few or too noisy."""
        if len(self._pairs) < MIN_STEPS:
            return None
        pairs = np.array(self._pairs)
        noise, signal = pairs.mean(axis=0)
        if noise <= 0 or signal <= 0:
            return None
        # Leave one step out at a time: the spread of a ratio of two means (jackknife, Tukey 1958).
        count = len(pairs)
        others = (pairs.sum(axis=0) - pairs) / (count - 1)
        if (others <= 0).any():
            return None
        logs = np.log(others[:, 0] / others[:, 1])
        sd = math.sqrt((count - 1) * float(np.mean((logs - logs.mean()) ** 2)))
        return NoiseScale(float(noise / signal), sd)

    def state_dict(self) -> dict[str, Any]:
        """The state to resume from, as JSON values."""
        return {"pairs": [list(pair) for pair in self._pairs]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from ``state_dict``."""
        self._pairs = [(float(noise), float(signal)) for noise, signal in state["pairs"]]
