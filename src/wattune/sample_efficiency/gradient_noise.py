"""The gradient noise scale, from the gradient norms of micro-batches, which cost nothing extra.

The expected squared norm of a gradient over B samples is |G|^2 + tr(Sigma) / B: the true gradient's, plus the noise of
the samples. Two sizes therefore give both terms; their ratio tr(Sigma) / |G|^2 is the noise scale, in samples. Each
step gives an unbiased estimate of either term, but their ratio in one step is useless, so numerator and denominator
are averaged over steps separately, and divided last.

Source: McCandlish et al. 2018, arXiv 1812.06162, section 2.2 and appendix A.1 (the simple noise scale).
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

MIN_STEPS: Final = 8
"""Steps before there is an estimate."""

MAX_STEPS: Final = 512
"""Most recent steps that count: the scale grows during training, so older ones are dropped."""


class NoiseScale(NamedTuple):
    """The gradient noise scale in samples, and the standard deviation of its logarithm."""

    samples: float
    sd: float


class GradientNorms:
    """Squared gradient norms, one pair per optimizer step."""

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
