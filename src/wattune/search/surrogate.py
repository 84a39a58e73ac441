"""A small model of a positive quantity over points: a sum of positive terms plus a residual.

    ln y(x) = ln sum_k exp(theta_k) phi_k(x) + residual(x),    theta_k ~ N(mean_k, sd_k^2)

Step time and power are sums by nature (so much per pass, per sample, per optimizer step; at rest and switching), so a
few points say a lot about all others, and no part of the sum can become negative. Parts that overlap in time, such as
computing and memory traffic, add up as a p-norm instead (``PNorm``), which lies between their sum (p = 1) and the
largest of them. The residual is a Gaussian process whose standard deviation says how far such a sum may be from a real
board. The posterior is the linear Gaussian one around its mode, which is found by Gauss-Newton steps; with some tens of
points that takes about a millisecond.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

STEPS = 8
"""Gauss-Newton steps from the last mode."""

LONGEST = 1.0
"""Bound on the change of one theta in one Gauss-Newton step."""

NEGLIGIBLE = 1e-3
"""Weight in a mixture below which a model is left out."""


class Residual(Protocol):
    """The part that the sum leaves out: a Gaussian process with mean 0 over the points."""

    @property
    def variance(self) -> Array:
        """Variance at each point, (points,)."""
        ...

    def between(self, a: Indices, b: Indices) -> Array:
        """Covariance of the residuals at ``a`` (n,) with those at ``b`` (m,), (n, m)."""
        ...


@dataclass(frozen=True, eq=False)
class SmoothResidual:
    """Alike at points that are near each other: ``places`` (points, axes) are positions in correlation lengths."""

    places: Array
    sd: float

    @property
    def variance(self) -> Array:
        """Variance at each point, (points,)."""
        return np.full(len(self.places), self.sd**2)

    def between(self, a: Indices, b: Indices) -> Array:
        """Covariance, (n, m): squared exponential."""
        apart = ((self.places[a][:, None, :] - self.places[b][None, :, :]) ** 2).sum(axis=2)
        return np.asarray(self.sd**2 * np.exp(-0.5 * apart))


@dataclass(frozen=True, eq=False)
class RowAndStepResidual:
    """A part that each row has for itself, and one that all rows share, which changes from value to value of a knob.

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
    with the norm of all others.
    """

    groups: Indices
    p: float = 1.0
    q: float = 1.0
    outer: int = 0

    def parts(self, terms: Array) -> Array:
        """Each group's own sum (points, groups) of ``terms`` (points, terms)."""
        return np.asarray(terms @ self._members)

    @cached_property
    def _members(self) -> Array:
        """1 where a term (rows) is one of a group (columns), else 0."""
        return np.equal.outer(self.groups, np.arange(self.groups.max() + 1)).astype(float)

    def sum(self, terms: Array) -> tuple[Array, Array]:
        """ln of the sum (points,), and each term's share of it (points, terms), its slope in the term's logarithm."""
        parts = self.parts(terms)
        split = parts.shape[1] - self.outer
        inner, inner_shares = _norm(parts[:, :split], self.p)
        value, shares = _norm(np.concatenate([np.exp(inner)[:, None], parts[:, split:]], axis=1), self.q)
        of_groups = np.concatenate([inner_shares * shares[:, :1], shares[:, 1:]], axis=1)
        weights = of_groups / np.maximum(parts, np.finfo(float).tiny)
        return value, np.asarray(terms * weights[:, self.groups])


def _norm(parts: Array, exponent: float) -> tuple[Array, Array]:
    """ln of the p-norm of ``parts`` (points, parts), and each one's share of it."""
    largest = parts.max(axis=1, keepdims=True)
    powers = (parts / largest) ** exponent
    total = powers.sum(axis=1, keepdims=True)
    return np.log(largest[:, 0]) + np.log(total[:, 0]) / exponent, powers / total


class Surrogate:
    """The model over a fixed set of points.

    ``features`` (points, terms): positive or 0. ``mean`` and ``sd`` (terms,): of each theta. ``norm``: how the terms
    add up, None for their sum. ``noise_sd``: standard deviation of a measured ln y, besides what ``fit`` is told.

    After ``fit``: ``mean`` and ``sd`` (points,) of ln y, ``shares`` (points, terms) of each term in the sum, and
    ``evidence``, the logarithm of the probability density of the measured values.
    """

    def __init__(
        self,
        features: Array,
        mean: Array,
        sd: Array,
        residual: Residual,
        norm: PNorm | None = None,
        noise_sd: float = 0.0,
    ):
        self._features = features
        self._prior_mean, self._prior = mean, sd**2
        self._residual = residual
        self._noise_sd = noise_sd
        self._theta = mean.copy()
        self._norm = PNorm(np.zeros(len(mean), dtype=np.intp)) if norm is None else norm

    def fit(self, at: Indices, logs: Array, sd: Array) -> None:
        """Fit to the values ``logs`` of ln y at the points ``at``, with their standard deviations, and nothing else."""
        self.explain(at, logs, sd)
        self.predict()

    def explain(self, at: Indices, logs: Array, sd: Array) -> None:
        """The first half of ``fit``: the mode and the evidence, for the price of the measured points alone."""
        among = self._residual.between(at, at) + np.diag(sd**2 + self._noise_sd**2)
        for _ in range(STEPS if len(at) else 0):
            value, shares = self._sum(self._features[at])
            total = (shares * self._prior) @ shares.T + among
            gain = np.linalg.solve(total, logs - value - shares @ (self._prior_mean - self._theta))
            step = self._prior_mean + self._prior * (shares.T @ gain) - self._theta
            self._theta = self._theta + np.clip(step, -LONGEST, LONGEST)
            if np.abs(step).max() < 1e-3:
                break
        value, shares = self._sum(self._features[at])
        self._at = at
        self._total = (shares * self._prior) @ shares.T + among
        self._surprise = logs - value - shares @ (self._prior_mean - self._theta)
        misfit = self._surprise @ np.linalg.solve(self._total, self._surprise) + np.linalg.slogdet(self._total)[1]
        self.evidence = -0.5 * float(misfit + len(at) * np.log(2 * np.pi))

    def predict(self) -> None:
        """The second half of ``fit``: mean and standard deviation at all points."""
        value, self.shares = self._sum(self._features)
        covariance = self._prior_covariance(self._at, np.arange(len(value)))
        self._weights = np.linalg.solve(self._total, covariance)
        self.mean: Array = value + self.shares @ (self._prior_mean - self._theta) + self._weights.T @ self._surprise
        variance = (self.shares**2) @ self._prior + self._residual.variance - (self._weights * covariance).sum(axis=0)
        self.sd: Array = np.sqrt(np.maximum(variance, 1e-12))

    def covariance(self, point: int) -> Array:
        """Covariance of ln y at this point with ln y at all points (points,), given what is known."""
        one = np.array([point])
        known = self._prior_covariance(one, self._at) @ self._weights
        return np.asarray((self._prior_covariance(one, np.arange(len(self.mean))) - known)[0])

    def parts(self) -> Array:
        """Each group's own sum as a share of y (points, groups): how long it is busy, if y is a time."""
        groups = self._norm.parts(self._features * np.exp(self._theta))
        return np.asarray(groups / np.exp(self._sum(self._features)[0])[:, None])

    def _prior_covariance(self, a: Indices, b: Indices) -> Array:
        return (self.shares[a] * self._prior) @ self.shares[b].T + self._residual.between(a, b)

    def _sum(self, features: Array) -> tuple[Array, Array]:
        """ln of the sum, and each term's share of it, which is the slope of ln y in that term's theta."""
        return self._norm.sum(features * np.exp(self._theta))


class Mixture:
    """Several models of the same quantity, each weighed by its evidence: by how probable it makes what was measured.

    ``models``: each with its probability before anything is measured, up to a factor. After ``fit`` ``mean``, ``sd``
    and ``covariance`` are those of the mixture, which also has how far its models are apart; ``likeliest`` is the one
    that counts most.
    """

    def __init__(self, models: Mapping[Surrogate, float]):
        self._all = tuple(models)
        self._priors = np.log(list(models.values()))

    def fit(self, at: Indices, logs: Array, sd: Array) -> None:
        """Fit every model, as ``Surrogate.fit`` does, and weigh them."""
        for model in self._all:
            model.explain(at, logs, sd)
        evidence = self._priors + [model.evidence for model in self._all]
        weights = np.exp(evidence - evidence.max())
        kept = np.flatnonzero(weights > NEGLIGIBLE * weights.sum())
        self._models = [self._all[index] for index in kept]
        self._weights = weights[kept] / weights[kept].sum()
        for model in self._models:
            model.predict()
        self.likeliest = self._models[int(np.argmax(self._weights))]
        means = np.array([model.mean for model in self._models])
        self.mean: Array = self._weights @ means
        self._apart = means - self.mean
        variances = np.array([model.sd**2 for model in self._models])
        self.sd: Array = np.sqrt(self._weights @ (variances + self._apart**2))

    def covariance(self, point: int) -> Array:
        """Covariance of ln y at this point with ln y at all points (points,), given what is known."""
        found = (self._weights * self._apart[:, point]) @ self._apart
        for weight, model in zip(self._weights, self._models, strict=True):
            found = found + weight * model.covariance(point)
        return np.asarray(found)
