"""Small models of a positive quantity over points: sums of positive terms plus a residual, fitted together.

    ln y(x) = ln sum_k exp(theta_k) phi_k(x) + residual(x),    theta_k ~ N(mean_k, sd_k^2)

Step time and power are sums by nature (so much per pass, per sample, per optimizer step; at rest and switching), so a
few points say a lot about all others, and no part of the sum can become negative. Parts that overlap in time, such as
computing and memory traffic, add up as a p-norm instead (``PNorm``), which lies between their sum (p = 1) and the
largest of them. The residual is a Gaussian process whose standard deviation says how far such a sum may be from a real
board. The posterior is the linear Gaussian one around its mode, which is found by Gauss-Newton steps. All models of a
quantity take each step together, as one array operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

STEPS = 8
"""Gauss-Newton steps from the last mode."""

LONGEST = 1.0
"""Bound on the change of one theta in one Gauss-Newton step."""

NEGLIGIBLE = 1e-2
"""Weight in a mixture below which a model is left out."""


@dataclass(frozen=True, eq=False)
class SmoothResidual:
    """A Gaussian process that is alike at points near each other, as a squared exponential.

    ``places`` (points, axes): positions in correlation lengths.
    """

    places: Array
    sd: float

    @property
    def variance(self) -> Array:
        """Variance at each point, (points,)."""
        return np.full(len(self.places), self.sd**2)

    def between(self, a: Indices, b: Indices) -> Array:
        """Covariance of the residuals at ``a`` (n,) with those at ``b`` (m,), (n, m)."""
        apart = ((self.places[a][:, None, :] - self.places[b][None, :, :]) ** 2).sum(axis=2)
        return np.asarray(self.sd**2 * np.exp(-0.5 * apart))


@dataclass(frozen=True, eq=False)
class RowAndStepResidual:
    """A Gaussian process with a part of each row's own, and one that all rows share, which changes along each knob.

    ``row`` (points,): index of each point's row; ``row_sd`` (points,): standard deviation of the row's own part.
    ``walked`` (points, knobs): variance that the shared part has gathered along each knob up to a point's value, from
    0 on: it is a random walk along each of them.
    """

    row: Indices
    row_sd: Array
    walked: Array

    @property
    def variance(self) -> Array:
        """Variance at each point, (points,)."""
        return np.asarray(self.row_sd**2 + self.walked.sum(axis=1))

    def between(self, a: Indices, b: Indices) -> Array:
        """Covariance, (n, m)."""
        own = np.multiply.outer(self.row_sd[a], self.row_sd[b]) * np.equal.outer(self.row[a], self.row[b])
        return np.asarray(own + sum(np.minimum.outer(along[a], along[b]) for along in self.walked.T))


@dataclass(frozen=True, eq=False)
class PNorm:
    """The norm that groups of terms add up by: ((sum of inner group^p)^(q/p) + sum of outer group^q)^(1/q).

    ``groups`` (terms,): index of each term's group, which is the sum of its terms. The last ``outer`` groups add up
    with the norm of all others. ``p`` and ``q``: numbers, or arrays (models,).
    """

    groups: Indices
    p: ArrayLike = 1.0
    q: ArrayLike = 1.0
    outer: int = 0

    def parts(self, terms: Array) -> Array:
        """Each group's own sum (..., points, groups) of ``terms`` (..., points, terms)."""
        return np.asarray(terms @ self._members)

    @cached_property
    def _members(self) -> Array:
        """1 where a term (rows) is one of a group (columns), else 0."""
        return np.equal.outer(self.groups, np.arange(self.groups.max() + 1)).astype(float)

    def of(self, models: Indices) -> PNorm:
        """The norms of these models alone."""
        p, q = (np.asarray(one)[models] if np.ndim(one) else one for one in (self.p, self.q))
        return PNorm(self.groups, p, q, self.outer)

    def sum(self, terms: Array) -> tuple[Array, Array]:
        """ln of the sum (..., points), and each term's share of it (..., points, terms): its slope in ln(term)."""
        parts = self.parts(terms)
        split = parts.shape[-1] - self.outer
        value, shares = _norm(parts[..., :split], self.p)
        if self.outer:
            inner = shares
            value, shares = _norm(np.concatenate([np.exp(value)[..., None], parts[..., split:]], axis=-1), self.q)
            shares = np.concatenate([inner * shares[..., :1], shares[..., 1:]], axis=-1)
        weights = shares / np.maximum(parts, np.finfo(float).tiny)
        return value, np.asarray(terms * weights[..., self.groups])


def _norm(parts: Array, exponent: ArrayLike) -> tuple[Array, Array]:
    """ln of the p-norm of ``parts`` (..., points, parts), and each one's share of it."""
    exponent = np.asarray(exponent)[..., None]
    largest = parts.max(axis=-1, keepdims=True)
    powers = (parts / largest) ** exponent[..., None]
    total = powers.sum(axis=-1, keepdims=True)
    return np.log(largest[..., 0]) + np.log(total[..., 0]) / exponent, powers / total


class Mixture:
    """Models of one quantity over a fixed set of points, each weighed by how probable it makes what was measured.

    ``features`` (models or 1, points, terms): positive or 0. ``mean`` and ``sd`` (models, terms): of each theta.
    ``norm``: how the terms add up, None for their sum. For each model, ``scale``: factor on the variance of the
    residual; ``noise_sd``: standard deviation of a measured ln y, besides what ``fit`` is told; ``prior``: how probable
    it is before anything is measured, up to a factor.

    After ``fit``, ``mean`` and ``sd`` (points,) of ln y are those of the mixture, which also has how far its models are
    apart; ``shares`` (points, terms) of each term in the sum, and ``parts`` (points, groups), are those of the model
    that counts most. ``evidence`` (models,): logarithm of the probability density of the measured values.
    """

    def __init__(
        self,
        features: Array,
        mean: Array,
        sd: Array,
        residual: SmoothResidual | RowAndStepResidual,
        norm: PNorm | None = None,
        *,
        scale: ArrayLike = 1.0,
        noise_sd: ArrayLike = 0.0,
        prior: ArrayLike = 1.0,
    ):
        self._features, self._residual = features, residual
        self._norm = PNorm(np.zeros(features.shape[-1], dtype=np.intp)) if norm is None else norm
        self._prior_mean, self._prior = np.broadcast_arrays(mean, sd**2)
        count = len(self._prior_mean)
        self._scale, self._noise_sd, self._log_prior = (
            np.broadcast_to(one, count) for one in (scale, noise_sd, np.log(prior))
        )
        self._theta = self._prior_mean.copy()

    def fit(self, at: Indices, logs: Array, sd: Array) -> None:
        """Fit to the values ``logs`` of ln y at the points ``at``, with their standard deviations, and nothing else."""
        noise = np.eye(len(at)) * (sd**2 + self._noise_sd[:, None] ** 2)[:, None, :]
        among = self._scale[:, None, None] * self._residual.between(at, at) + noise
        features, prior, known = self._features[:, at], self._prior[:, None, :], self._prior_mean
        for left in reversed(range(STEPS + 1)):
            value, shares = self._norm.sum(features * np.exp(self._theta)[:, None, :])
            total = (shares * prior) @ shares.swapaxes(1, 2) + among
            surprise = logs - value - _times(shares, known - self._theta)
            gain = np.linalg.solve(total, surprise[..., None])[..., 0]
            step = known + self._prior * _times(shares.swapaxes(1, 2), gain) - self._theta
            if left == 0 or np.abs(step).max() < 1e-3:
                break
            self._theta = self._theta + np.clip(step, -LONGEST, LONGEST)
        misfit = (surprise * gain).sum(axis=1) + np.linalg.slogdet(total)[1]
        self.evidence: Array = -0.5 * (misfit + len(at) * np.log(2 * np.pi))
        weights = self._log_prior + self.evidence
        weights = np.exp(weights - weights.max())
        kept = np.flatnonzero(weights > NEGLIGIBLE * weights.sum())
        self._weights = weights[kept] / weights[kept].sum()
        self._predict(kept, at, total[kept], surprise[kept])

    def _predict(self, kept: Indices, at: Indices, total: Array, surprise: Array) -> None:
        """Mean and standard deviation at all points, by the models that count."""
        terms = (self._features if len(self._features) == 1 else self._features[kept]) * np.exp(self._theta[kept])[
            :, None, :
        ]
        value, shares = self._norm.of(kept).sum(terms)
        self._shares, self._spread = shares, shares * self._prior[kept][:, None, :]
        self._scales, everywhere = self._scale[kept], np.arange(value.shape[1])
        residual = self._scales[:, None, None] * self._residual.between(at, everywhere)
        self._covariance = self._spread[:, at] @ shares.swapaxes(1, 2) + residual
        self._known = np.linalg.solve(total, self._covariance)
        means = value + _times(shares, self._prior_mean[kept] - self._theta[kept])
        means = means + (self._known * surprise[..., None]).sum(axis=1)
        variances = (self._spread * shares).sum(axis=2) + self._scales[:, None] * self._residual.variance
        variances = np.maximum(variances - (self._known * self._covariance).sum(axis=1), 1e-12)
        self.mean: Array = self._weights @ means
        self._apart = means - self.mean
        self.sd: Array = np.sqrt(self._weights @ (variances + self._apart**2))
        first = int(np.argmax(self._weights))
        self.shares, self.parts = shares[first], self._norm.parts(terms[first]) / np.exp(value[first])[:, None]

    def covariance(self, point: int) -> Array:
        """Covariance of ln y at this point with ln y at all points (points,), given what is known."""
        one = _times(self._shares, self._spread[:, point])
        own = self._residual.between(np.array([point]), np.arange(len(self.mean)))
        known = (self._covariance[:, :, point, None] * self._known).sum(axis=1)
        within = self._weights @ (one + self._scales[:, None] * own - known)
        return np.asarray(within + (self._weights * self._apart[:, point]) @ self._apart)


def _times(matrices: Array, vectors: Array) -> Array:
    """Each model's matrix times its vector."""
    return np.asarray((matrices @ vectors[..., None])[..., 0])
