"""Samples to target per batch size: the posterior given runs at a few of them, and its transfer to the target.

The model of the runs is in ``mixture``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from scipy.special import ndtr

from wattune.records.efficiency import BAND_SD
from wattune.sample_efficiency.mixture import (
    PROXY_RUNS,
    WHOLE_RUNS,
    Array,
    Mixture,
    Observation,
    fit_mixture,
    size_correlation,
)
from wattune.sample_efficiency.prior import critical_batch_size

__all__ = ["TRANSFER_SD", "Array", "CurvePosterior", "Observation", "fit", "gaussian_draws"]

TRANSFER_SD: Final = 0.05
"""Standard deviation of the target's ln N(b) around the proxy's, correlated between neighbouring batch sizes.

The maximum likelihood estimate from eight pairs of a proxy and a target is 0.045: six pairs of images give 0.045, two
of texts less than 0.03.
"""

RATIO_SD: Final = 0.15
"""Standard deviation that each e-fold in the number of parameters between proxy and target adds.

Source: runs to a target loss at four sizes of a language model, 85M to 1.2B parameters: the target's curve is 0.10 off
at twice the proxy's size and 0.42 at 14 times, towards larger batch sizes for the larger model.
"""


CLUMP_GAP: Final = 1.0
"""Gap in ln(samples) between runs of one batch size above which they are two clumps.

Seeds differ by a tenth of that: the runs have another recipe, or some of them diverged and recovered.
"""

LEAST_SHARE: Final = 1e-6
"""Weight below which a component of the mixture is left out."""


@dataclass(frozen=True, eq=False)
class CurvePosterior(Mixture):
    """Posterior of ln N(b) and of its shape ln r(b) = ln N(b) - ln N(reference), over ``batch_sizes`` (n,).

    ``reference``: the largest batch size with a run that reached the target; without any, the largest. ``runs``,
    ``censored``: counts per batch size. ``left_out``: runs that are not in the fit, since others at their batch size
    form a clump far from them. ``whole``, ``ratio``: see ``fit``. ``transfer_sd``: see ``TRANSFER_SD``; part of
    ``covariance``.
    """

    batch_sizes: tuple[int, ...]
    reference: int
    runs: dict[int, int]
    censored: dict[int, int]
    left_out: tuple[Observation, ...]
    whole: bool
    ratio: float
    transfer_sd: float

    @cached_property
    def mean(self) -> Array:
        """Mean of ln r(b), (n,); 0 at the reference."""
        return np.asarray(self.log_samples - self.log_samples[self._at])

    @cached_property
    def covariance(self) -> Array:
        """Covariance of ln r(b), (n, n), with the transfer to the target; 0 at the reference."""
        return self._relative(self.log_samples_covariance + self._transfer)

    @cached_property
    def proxy_covariance(self) -> Array:
        """Covariance of ln r(b) on the proxy, (n, n): the part that more runs reduce."""
        return self._relative(self.log_samples_covariance)

    @property
    def critical_sd(self) -> float:
        """Standard deviation of the logarithm of the critical batch size, from its interval."""
        _, low, high = self.critical_batch_size
        return math.log(high / low) / (2 * BAND_SD)

    @cached_property
    def lost(self) -> frozenset[int]:
        """Batch sizes whose runs were all censored: only a lower bound of their samples is known."""
        return frozenset(b for b, runs in self.runs.items() if runs and self.censored[b] == runs)

    def band(self, batch_size: int) -> tuple[float, float]:
        """Ends of the 90 % band of r(b) on the target. Raises: ValueError for an unknown batch size."""
        place, at = self.batch_sizes.index(batch_size), self._at
        if place == at:
            return 1.0, 1.0
        centres = self.centres[:, place] - self.centres[:, at]
        variances = _difference(self.spreads, place, at) + _difference(self._transfer, place, at)
        low, high = (_quantile(share, self.shares, centres, np.sqrt(variances)) for share in (0.05, 0.95))
        return math.exp(low), math.exp(high)

    def draws(self, count: int, seed: int = 0) -> Array:
        """Draw ln r(b) on the target, (count, n), from the mixture; reproducible."""
        parts = self.shares > LEAST_SHARE
        shares = self.shares[parts] / self.shares[parts].sum()
        # As many draws of each component as its share, the same for every seed.
        component = np.searchsorted(np.cumsum(shares)[:-1], (np.arange(count) + 0.5) / count)
        spreads = self.spreads[parts] + self._transfer
        values, vectors = np.linalg.eigh(spreads)
        roots = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]  # of the covariances (h, n, n)
        noise = np.random.default_rng(seed).standard_normal((count, len(self.batch_sizes)))
        logs = self.centres[parts][component] + np.einsum("dnm,dm->dn", roots[component], noise)
        return np.asarray(logs - logs[:, [self._at]])

    @property
    def _at(self) -> int:
        return self.batch_sizes.index(self.reference)

    @property
    def _transfer(self) -> Array:
        return self.transfer_sd**2 * size_correlation(self.batch_sizes)

    def _relative(self, covariance: Array) -> Array:
        at = self._at
        return np.asarray(covariance - covariance[:, [at]] - covariance[[at], :] + covariance[at, at])


def fit(
    observations: Sequence[Observation],
    batch_sizes: Sequence[int],
    *,
    whole: bool = False,
    ratio: float = 1.0,
) -> CurvePosterior:
    """Fit the curve to the runs; without runs the result is the prior of any workload.

    Runs of one batch size that form two clumps are not averaged: the smaller clump is left out, and of two equal ones
    the one that is further from the curve through the other batch sizes.

    ``whole``: the runs are whole training runs, which differ in other ways than those of a small proxy. ``ratio``: the
    target's number of parameters over the proxy's.

    Raises: ValueError if a batch size or a number of samples is out of range, if a run has another batch size, or if
    there are runs and none reached the target.
    """
    sizes = tuple(sorted(set(batch_sizes)))
    _check(observations, sizes)
    # In one order, so that sums round alike however the runs are ordered.
    runs = sorted(observations, key=lambda run: (*run[:3], run.seed is None, run.seed or 0, run.spacing))
    reached = [run.batch_size for run in runs if run.reached]

    def mix(some: Sequence[Observation]) -> Mixture:
        return fit_mixture(some, sizes, critical_batch_size(sizes[-1]), WHOLE_RUNS if whole else PROXY_RUNS)

    left_out = _left_out(runs, sizes, mix)
    mixture = mix([run for run in runs if run not in left_out])
    return CurvePosterior(
        **vars(mixture),
        batch_sizes=sizes,
        reference=max(reached, default=sizes[-1]),
        runs={size: sum(run.batch_size == size for run in runs) for size in sizes},
        censored={size: sum(run.batch_size == size and not run.reached for run in runs) for size in sizes},
        left_out=left_out,
        whole=whole,
        ratio=ratio,
        transfer_sd=math.hypot(TRANSFER_SD, RATIO_SD * math.log(ratio)),
    )


def _left_out(
    runs: Sequence[Observation], sizes: tuple[int, ...], mix: Callable[[Sequence[Observation]], Mixture]
) -> tuple[Observation, ...]:
    """Runs of a clump that is not the main one of its batch size."""
    left_out: list[Observation] = []
    for place, size in enumerate(sizes):
        low, high = _clumps([run for run in runs if run.batch_size == size])
        if len(low) == len(high) > 0:
            others = [run for run in runs if run.batch_size != size]
            expected = mix(others).log_samples[place] if any(run.reached for run in others) else -math.inf
            apart = [abs(float(np.mean(np.log([run.samples for run in clump]))) - expected) for clump in (low, high)]
            left_out += high if apart[0] <= apart[1] else low
        else:
            left_out += low if len(low) < len(high) else high
    return tuple(left_out)


def _clumps(runs: Sequence[Observation]) -> tuple[list[Observation], list[Observation]]:
    """Split the runs of one batch size at their largest gap; empty lists if that is no more than ``CLUMP_GAP``.

    A run that ended before the target belongs to neither: only a lower bound of its samples is known.
    """
    order = sorted((run for run in runs if run.reached), key=lambda run: run.samples)
    if len(order) < 2:
        return [], []
    logs = np.log([run.samples for run in order])
    at = int(np.argmax(np.diff(logs)))
    # Between evaluations that are far apart, a gap may be one of where they are.
    grain = 4 * math.hypot(order[at].spacing, order[at + 1].spacing)
    if logs[at + 1] - logs[at] <= max(CLUMP_GAP, grain):
        return [], []
    return order[: at + 1], order[at + 1 :]


def gaussian_draws(covariance: Array, count: int, seed: int = 0) -> Array:
    """Draw (count, n) with mean 0 and this covariance; if ``count`` exceeds n, the draws' own moments match exactly."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    normal = np.random.default_rng(seed).standard_normal((count, len(values)))
    if count > len(values):
        normal -= normal.mean(axis=0)
        spread = np.linalg.cholesky(normal.T @ normal / count)
        normal = np.linalg.solve(spread, normal.T).T
    return np.asarray(normal @ root.T)


def _difference(covariance: Array, one: int, other: int) -> Array:
    """Variance of the difference of two components, from one covariance (n, n) or several (h, n, n)."""
    return np.asarray(covariance[..., one, one] + covariance[..., other, other] - 2 * covariance[..., one, other])


def _quantile(share: float, weights: Array, centres: Array, sds: Array) -> float:
    """Quantile of a mixture of Gaussians, by bisection."""
    parts = weights > LEAST_SHARE
    weights, centres, sds = weights[parts], centres[parts], sds[parts]
    low, high = float((centres - 10 * sds).min()), float((centres + 10 * sds).max())
    for _ in range(40):
        middle = (low + high) / 2
        below = weights @ ndtr((middle - centres) / sds)
        low, high = (middle, high) if below < share else (low, middle)
    return (low + high) / 2


def _check(runs: Sequence[Observation], sizes: tuple[int, ...]) -> None:
    if not sizes or sizes[0] < 1:
        raise ValueError("batch sizes must be positive")
    if any(not 0 < run.samples < math.inf or not 0 <= run.spacing < math.inf for run in runs):
        raise ValueError("the samples of a run must be positive and finite")
    if unknown := {run.batch_size for run in runs} - set(sizes):
        raise ValueError(f"runs at batch sizes that are not on the curve: {sorted(unknown)}")
    if runs and not any(run.reached for run in runs):
        raise ValueError("no run reached the target")
