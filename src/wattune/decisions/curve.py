"""How many samples each batch size needs to the target, pooled over the runs of all of them.

What runs at a few batch sizes say of all of them, see ``mixture``, and what of that holds for the target.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from wattune.decisions.mixture import Array, Mixture, Observation, alike, pooled
from wattune.decisions.prior import critical_batch_size
from wattune.records.efficiency import BAND_SD

__all__ = ["TRANSFER_SD", "Array", "CurvePosterior", "Observation", "fit", "scattered"]

TRANSFER_SD: Final = 0.05
"""Standard deviation of ln N(b) of the target around that of the proxy, neighbours having it partly in common.

Most likely 0.045 by eight pairs of a proxy and a target, six of images (0.045 alone) and two of texts (under 0.03).
"""


@dataclass(frozen=True, eq=False)
class CurvePosterior:
    """What is known of ln N(b) and of its shape ln r(b) = ln N(b) - ln N(reference), over ``batch_sizes`` (n,).

    ``log_samples`` (n,) and ``log_samples_covariance`` (n, n): of ln N(b) on the proxy; without any run their level
    means nothing. ``reference``: the largest batch size with a run that reached the target, without any the largest.
    ``noise_sd``: of ln N over runs, ``own_sd`` what of it runs of one seed do not have in common.
    ``critical_batch_size``: median, and ends of the 90 % interval. ``exponent``: mean of p. ``misfit``: the runs do not
    follow the curve, so their means count and more runs are needed. ``runs`` and ``censored``: per batch size.
    ``transfer_sd``: what ``covariance`` has for the way from the proxy to the target. ``mixture``: the posterior
    itself, which mean and covariance sum up.
    """

    batch_sizes: tuple[int, ...]
    reference: int
    log_samples: Array
    log_samples_covariance: Array
    noise_sd: float
    own_sd: float
    critical_batch_size: tuple[float, float, float]
    exponent: float
    misfit: bool
    runs: dict[int, int]
    censored: dict[int, int]
    transfer_sd: float
    mixture: Mixture

    @cached_property
    def mean(self) -> Array:
        """Of ln r(b), (n,); 0 at the reference."""
        return np.asarray(self.log_samples - self.log_samples[self._at])

    @cached_property
    def covariance(self) -> Array:
        """Of ln r(b), (n, n), with the transfer to the target; 0 at the reference."""
        return self._relative(self.log_samples_covariance + self._transfer)

    @cached_property
    def proxy_covariance(self) -> Array:
        """Of ln r(b) on the proxy, (n, n): what more runs can make smaller."""
        return self._relative(self.log_samples_covariance)

    @property
    def critical_sd(self) -> float:
        """Standard deviation of the logarithm of the critical batch size, by its interval."""
        _, low, high = self.critical_batch_size
        return math.log(high / low) / (2 * BAND_SD)

    @cached_property
    def lost(self) -> frozenset[int]:
        """Batch sizes all of whose runs were censored: only a lower bound is known of them."""
        return frozenset(b for b, runs in self.runs.items() if runs and self.censored[b] == runs)

    def band(self, batch_size: int) -> tuple[float, float]:
        """Ends of the 90 % band of r(b) on the target. Raises: ValueError for another batch size."""
        place, at = self.batch_sizes.index(batch_size), self._at
        if place == at:
            return 1.0, 1.0
        centres = self.mixture.centres[:, place] - self.mixture.centres[:, at]
        variances = _difference(self.mixture.spreads, place, at) + _difference(self._transfer, place, at)
        low, high = (_quantile(share, self.mixture.shares, centres, np.sqrt(variances)) for share in (0.05, 0.95))
        return math.exp(low), math.exp(high)

    def draws(self, count: int, seed: int = 0) -> Array:
        """So many draws of ln r(b), (count, n), from the Gaussian with this mean and covariance: the same each time."""
        return self.mean + scattered(self.covariance, count, seed)

    @property
    def _at(self) -> int:
        return self.batch_sizes.index(self.reference)

    @property
    def _transfer(self) -> Array:
        return self.transfer_sd**2 * alike(self.batch_sizes)

    def _relative(self, covariance: Array) -> Array:
        at = self._at
        return np.asarray(covariance - covariance[:, [at]] - covariance[[at], :] + covariance[at, at])


def fit(
    observations: Sequence[Observation],
    batch_sizes: Sequence[int],
    *,
    noise_scale: float | None = None,
    noise_sd: float = 0.0,
    transfer: bool = True,
) -> CurvePosterior:
    """What the runs say of ``batch_sizes``; without runs, what is believed of any workload.

    ``noise_scale``: the gradient noise scale in samples, where it is known, and ``noise_sd`` that of its logarithm.
    ``transfer``: state it for the target, of which the runs' workload is a proxy.

    Raises: ValueError for what is no batch size or no number of samples, for a run at another batch size, and where
    there are runs and none reached the target.
    """
    sizes = tuple(sorted(set(batch_sizes)))
    _check(observations, sizes, noise_scale)
    # In one order, so that sums round alike whatever order the runs come in.
    runs = sorted(observations, key=lambda run: (*run[:3], run.seed is None, run.seed or 0, run.spacing))
    reached = [run.batch_size for run in runs if run.reached]
    mixture = pooled(runs, sizes, critical_batch_size(noise_scale, noise_sd))
    return CurvePosterior(
        batch_sizes=sizes,
        reference=max(reached, default=sizes[-1]),
        log_samples=mixture.mean,
        log_samples_covariance=mixture.covariance,
        noise_sd=mixture.noise_sd,
        own_sd=mixture.own_sd,
        critical_batch_size=mixture.critical,
        exponent=mixture.exponent,
        misfit=mixture.misfit,
        runs={size: sum(run.batch_size == size for run in runs) for size in sizes},
        censored={size: sum(run.batch_size == size and not run.reached for run in runs) for size in sizes},
        transfer_sd=TRANSFER_SD if transfer else 0.0,
        mixture=mixture,
    )


def scattered(covariance: Array, count: int, seed: int = 0) -> Array:
    """So many draws with mean 0 and this covariance, (count, n): exactly these where there are more draws than n."""
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    normal = np.random.default_rng(seed).standard_normal((count, len(values)))
    if count > len(values):
        normal -= normal.mean(axis=0)
        spread = np.linalg.cholesky(normal.T @ normal / count)
        normal = np.linalg.solve(spread, normal.T).T
    return np.asarray(normal @ root.T)


def _difference(covariance: Array, one: int, other: int) -> Array:
    """Variance of the difference of two places, by a covariance or several."""
    return np.asarray(covariance[..., one, one] + covariance[..., other, other] - 2 * covariance[..., one, other])


def _quantile(share: float, weights: Array, centres: Array, sds: Array) -> float:
    """Below which so much of a mixture of Gaussians lies."""
    parts = [(w, m, s) for w, m, s in zip(weights.tolist(), centres.tolist(), sds.tolist(), strict=True) if w > 1e-6]
    low, high = min(m - 10 * s for _, m, s in parts), max(m + 10 * s for _, m, s in parts)
    for _ in range(40):
        middle = (low + high) / 2
        below = sum(w * 0.5 * math.erfc((m - middle) / s / math.sqrt(2)) for w, m, s in parts)
        low, high = (middle, high) if below < share else (low, middle)
    return float(low + high) / 2


def _check(runs: Sequence[Observation], sizes: tuple[int, ...], noise_scale: float | None) -> None:
    if not sizes or sizes[0] < 1 or (noise_scale is not None and not 0 < noise_scale < math.inf):
        raise ValueError("batch sizes and the noise scale are above 0")
    if any(not 0 < run.samples < math.inf or not 0 <= run.spacing < math.inf for run in runs):
        raise ValueError("a run needs samples above 0")
    if strange := {run.batch_size for run in runs} - set(sizes):
        raise ValueError(f"runs at batch sizes that are not asked for: {sorted(strange)}")
    if runs and not any(run.reached for run in runs):
        raise ValueError("no run reached the target")
