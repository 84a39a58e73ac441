"""The gradient noise scale, from gradient norms that micro-batches give anyway.

The squared norm of a gradient over B samples is |G|^2 + tr(Sigma) / B on average: that of the true gradient, and the
noise of the samples. Two sizes therefore tell both; their quotient tr(Sigma) / |G|^2 is the noise scale, in samples.
Each step gives an unbiased estimate of either, but their quotient in one step is worthless, so numerator and
denominator are averaged over steps separately, and divided last.

Source: McCandlish et al. 2018, arXiv 1812.06162, section 2.2 and appendix A.1 (the simple noise scale).
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np

EARLY_OFFSET: Final = 2.0
EARLY_SD: Final = 0.7
"""ln(critical batch size) is ln(noise scale of the first samples) + 2.0, to this standard deviation.

It is more than over the whole training (``wattune.decisions.prior``), since the noise scale grows as a training goes
on. By ten trainings each of seven small workloads at two learning rates and two targets.
"""

FEWEST: Final = 8
"""Steps before there is an estimate."""

LONGEST: Final = 512
"""Steps that are kept: the scale grows as training goes on, so what is older does not count."""


class NoiseScale(NamedTuple):
    """The gradient noise scale in samples, and the standard deviation of its logarithm."""

    samples: float
    sd: float


def early_noise_scale(critical: float, critical_sd: float = 0.0) -> NoiseScale:
    """The noise scale that a training begins with where this is the critical batch size.

    ``critical_sd``: standard deviation of the logarithm of the critical batch size.
    """
    return NoiseScale(critical * math.exp(-EARLY_OFFSET), math.hypot(EARLY_SD, critical_sd))


class Norms:
    """Collects squared gradient norms, one pair per optimizer step."""

    def __init__(self) -> None:
        self._pairs: list[tuple[float, float]] = []

    def add(self, small: int, small_square: float, big: int, big_square: float) -> None:
        """Squared norms of the mean gradients over ``small`` and over ``big`` samples of the same step.

        The smaller batch may be part of the bigger one (its first micro-batch, say), and ``small_square`` the mean
        over several such parts. What is not finite is left out: a scaled gradient may overflow.
        Raises: ValueError where ``small`` is not the smaller one.
        """
        if not 0 < small < big:
            raise ValueError("two batches of different size, the smaller one first")
        if math.isfinite(small_square) and math.isfinite(big_square):
            signal = (big * big_square - small * small_square) / (big - small)
            noise = (small_square - big_square) / (1 / small - 1 / big)
            self._pairs = [*self._pairs[1 - LONGEST :], (noise, signal)]

    def estimate(self) -> NoiseScale | None:
        """The noise scale over the steps so far; None while they do not tell it."""
        if len(self._pairs) < FEWEST:
            return None
        pairs = np.array(self._pairs)
        noise, signal = pairs.mean(axis=0)
        if noise <= 0 or signal <= 0:
            return None
        # Leave one step out at a time: the spread of a quotient of two means (jackknife, Tukey 1958).
        count = len(pairs)
        others = (pairs.sum(axis=0) - pairs) / (count - 1)
        if (others <= 0).any():
            return None
        logs = np.log(others[:, 0] / others[:, 1])
        sd = math.sqrt((count - 1) * float(np.mean((logs - logs.mean()) ** 2)))
        return NoiseScale(float(noise / signal), sd)

    def state_dict(self) -> dict[str, Any]:
        """What later norms need to go on from here, as JSON values."""
        return {"pairs": [list(pair) for pair in self._pairs]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        self._pairs = [(float(noise), float(signal)) for noise, signal in state["pairs"]]
