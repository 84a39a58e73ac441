"""A small model of a positive quantity over points: a sum of positive terms plus a residual.

    ln y(x) = ln sum_k exp(theta_k) phi_k(x) + residual(x),    theta_k ~ N(mean_k, sd_k^2)

Step time and power are sums by nature (so much per pass, per sample, per optimizer step; at rest and switching), so a
few points say a lot about all others, and no part of the sum can become negative. The residual is a Gaussian process
whose standard deviation says how far such a sum may be from a real board. The posterior is the linear Gaussian one
around its mode, which is found by Gauss-Newton steps; with some tens of points that takes about a millisecond.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

STEPS = 8
"""Gauss-Newton steps from the last mode."""

LONGEST = 1.0
"""Bound on the change of one theta in one Gauss-Newton step."""


class Surrogate:
    """The model over a fixed set of points.

    ``features`` (points, terms): positive or 0. ``mean`` and ``sd`` (terms,): of each theta. ``places`` (points, axes):
    positions of the points, in correlation lengths of the residual; ``residual_sd``: its standard deviation.
    ``bends``: positions (points,) along one axis of a further residual, shared by all points at the same position:
    it adds little uncertainty between two known positions, and quickly more beyond them (see ``_bending``).

    After ``fit``: ``mean`` and ``sd`` (points,) of ln y, and ``shares`` (points, terms) of each term in the sum.
    """

    def __init__(
        self, features: Array, mean: Array, sd: Array, places: Array, residual_sd: float, bends: Array | None = None
    ):
        self._features = features
        self._prior_mean, self._prior = mean, sd**2
        self._places = places
        self._variance = residual_sd**2
        self._bends = np.zeros(len(places)) if bends is None else bends
        self._theta = mean.copy()
        self.fit(np.zeros(0, dtype=np.intp), np.zeros(0), np.zeros(0))

    def fit(self, at: Indices, logs: Array, sd: Array) -> None:
        """Fit to the values ``logs`` of ln y at the points ``at``, with their standard deviations, and nothing else."""
        among = self._residual(at, at) + np.diag(sd**2)
        for _ in range(STEPS if len(at) else 0):
            value, shares = self._sum(self._features[at])
            total = (shares * self._prior) @ shares.T + among
            gain = np.linalg.solve(total, logs - value - shares @ (self._prior_mean - self._theta))
            step = self._prior_mean + self._prior * (shares.T @ gain) - self._theta
            self._theta = self._theta + np.clip(step, -LONGEST, LONGEST)
            if np.abs(step).max() < 1e-3:
                break
        value, self.shares = self._sum(self._features)
        offset = self._prior_mean - self._theta
        self.mean: Array = value + self.shares @ offset
        self._at = at
        self._total = (self.shares[at] * self._prior) @ self.shares[at].T + among
        everywhere = np.arange(len(value))
        self._weights = np.linalg.solve(self._total, self._prior_covariance(at, everywhere))
        self.mean = self.mean + self._weights.T @ (logs - self.mean[at])
        variance = (self.shares**2) @ self._prior + self._variance + self._bends**3 / 3
        variance = variance - (self._weights * self._prior_covariance(at, everywhere)).sum(axis=0)
        self.sd: Array = np.sqrt(np.maximum(variance, 1e-12))

    def covariance(self, point: int) -> Array:
        """Covariance of ln y at this point with ln y at all points (points,), given what is known."""
        everywhere = np.arange(len(self.mean))
        one = np.array([point])
        known = self._prior_covariance(one, self._at) @ self._weights
        return np.asarray((self._prior_covariance(one, everywhere) - known)[0])

    def _prior_covariance(self, a: Indices, b: Indices) -> Array:
        return (self.shares[a] * self._prior) @ self.shares[b].T + self._residual(a, b)

    def _residual(self, a: Indices, b: Indices) -> Array:
        apart = ((self._places[a][:, None, :] - self._places[b][None, :, :]) ** 2).sum(axis=2)
        return np.asarray(self._variance * np.exp(-0.5 * apart)) + _bending(self._bends[a], self._bends[b])

    def _sum(self, features: Array) -> tuple[Array, Array]:
        """ln of the sum, and each term's share of it, which is the slope of ln y in that term's theta."""
        parts = features * np.exp(self._theta)
        total = parts.sum(axis=1)
        return np.log(total), parts / total[:, None]


def _bending(a: Array, b: Array) -> Array:
    """Covariance of a line whose slope drifts at random: of the integral of a Wiener process that begins at 0."""
    lower, upper = np.minimum.outer(a, b), np.maximum.outer(a, b)
    return np.asarray(lower**2 * (3 * upper - lower) / 6)
