"""The model of samples to target over batch sizes, and its posterior: a mixture of Gaussians in closed form.

**Likelihood.** Run i at batch size b_i with seed s_i reaches the target after N_i samples,

    ln N_i = x(b_i) + g(s_i) + e_i,     g(s) ~ N(0, rho sigma^2),   e_i ~ N(0, (1 - rho) sigma^2 + spacing_i^2)

Runs with the same seed begin with the same weights and see the same samples, so a share rho of the variance sigma^2
between runs may be common to all batch sizes; it then cancels in their ratios. ``spacing_i`` is what the distance
between two evaluations leaves open. A run that ended at N_i before the target (censored) has the likelihood
P(ln N > ln N_i), a tail of the normal distribution (Tobin 1958).

**Prior.** What is wanted is x(b) = ln N(b) at the n batch sizes,

    x(b) = u + f(b) + d(b),   f(b) = ln(1 + (b / B_c)^p),   u ~ N(mean of the runs, 10^2),   d ~ N(0, delta^2 K)

With p = 1, f is the trade-off of McCandlish et al. 2018 (arXiv 1812.06162, section 2): samples grow as 1 + b / B_c with
a critical batch size B_c; other exponents bend the curve earlier or later. A measured workload follows such a curve to
a few percent only, hence the deviation d, half of which neighbours share: K = (C + I) / 2 with C of
``size_correlation``.

**Posterior.** B_c and p (c combinations), and delta, sigma and rho (h combinations) lie on a grid. Given a grid point
everything is Gaussian: the runs reduce to a mean m (k,) with covariance R (k, k) at the k batch sizes that have runs
(``_measured``), and with P = delta^2 K + 10^2 the prior covariance, M = P_kk + R and the gain G = M^-1 P_kn,

    E[x] = f + G^T (m - f_k) = G^T m + T^T f,  T = I - [G in the rows of the k]      Cov[x] = P - P_nk G
    weight = prior(c) prior(h) p(runs | m, h) |M|^-1/2 exp(-(m - f_k)^T M^-1 (m - f_k) / 2)

so the posterior is a finite mixture. A few runs therefore inform all batch sizes, and with many runs at one batch size
its own mean decides alone. A censored run's tail is replaced by the Gaussian factor that leaves mean and variance of
x(b) the same (expectation propagation, Minka 2001).

In the code: ``_deviation`` delta, ``_seed`` sigma, ``_common`` rho, ``_critical`` B_c, ``_curves`` f.
The constants come from small experiments of our own: two kinds of small models, batch sizes to 128.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx

Array = NDArray[np.float64]

LENGTH: Final = 1.5
"""Correlation length of the deviation and of the transfer to the target, in doublings of the batch size."""

EXPONENTS: Final = {0.5: 0.2, 0.75: 0.3, 1.0: 0.35, 1.5: 0.15}
"""Exponent p -> its prior probability."""


class Spreads(NamedTuple):
    """Prior of the spreads of one kind of runs.

    ``seed_sd``: median of the standard deviation sigma of ln N over runs. ``deviations``: standard deviation delta of
    ln N(b) around the curve -> its prior probability.
    """

    seed_sd: float
    deviations: dict[float, float]


PROXY_RUNS: Final = Spreads(0.12, {0.03: 0.4, 0.07: 0.3, 0.15: 0.15, 0.32: 0.15})
"""Runs of a small proxy: their seeds differ much, and they follow the curve closely."""

WHOLE_RUNS: Final = Spreads(0.07, {0.03: 0.15, 0.07: 0.2, 0.15: 0.3, 0.32: 0.35})
"""Whole training runs: their seeds differ little, but their recipe was tuned at one batch size and not at the others.

Source: the recorded training runs of Zeus (NSDI 2023), three workloads.
"""

MISFIT: Final = 0.1
MISFIT_ODDS: Final = 7 / 3
"""If the runs raise the odds of a deviation above 0.1 by this factor, the curve does not describe them."""

SEED_SPREAD: Final = 0.5
"""Standard deviation of ln sigma."""

COMMON: Final = {0.0: 0.5, 0.35: 0.25, 0.7: 0.25}
"""Share rho of that variance that runs of the same seed have in common -> its prior probability."""

_CRITICAL_STEPS = np.linspace(-3.3, 3.3, 21)  # standard deviations of ln B_c
_SEED_STEPS = np.linspace(-2.0, 2.0, 5)
_LEVEL_SD = 10.0  # of u around the mean of the runs: flat
_FLAT = 1e-9  # precision of an uninformative factor
_MIN_CAVITY = 0.2  # least share of the precision that remains without a censored run
_ROUNDS = 6


class Observation(NamedTuple):
    """One run: ``samples`` to the target, or up to its end if it did not reach it (censored).

    ``seed``: runs of the same seed are correlated; None: with no other run. ``spacing``: standard deviation of
    ln(samples) that the distance between two evaluations leaves open.
    """

    batch_size: int
    samples: float
    reached: bool = True
    seed: int | None = None
    spacing: float = 0.0


def size_correlation(sizes: Sequence[int]) -> Array:
    """Correlation of the deviations of two batch sizes, (n, n): C_ij = exp(-(log2(b_i / b_j) / LENGTH)^2 / 2)."""
    places = np.log2(np.array(sizes, dtype=float)) / LENGTH
    return np.asarray(np.exp(-0.5 * (places[:, None] - places[None, :]) ** 2))


@dataclass(frozen=True, eq=False)
class Mixture:
    """Posterior of ln N(b) on the proxy, ``log_samples`` (n,) with ``log_samples_covariance`` (n, n).

    Their level is arbitrary without runs. ``shares`` (h,), ``centres`` (h, n) and ``spreads`` (h, n, n): weights, means
    and covariances of the components. ``noise_sd``: standard deviation of ln N over runs; ``own_sd``: its part that
    runs of one seed do not share. ``critical_batch_size``: median, and ends of the 90 % interval. ``misfit``: the runs
    do not follow the curve, so more of them are needed.
    """

    log_samples: Array
    log_samples_covariance: Array
    shares: Array
    centres: Array
    spreads: Array
    noise_sd: float
    own_sd: float
    critical_batch_size: tuple[float, float, float]
    misfit: bool


def fit_mixture(
    runs: Sequence[Observation], sizes: tuple[int, ...], critical: tuple[float, float], spreads: Spreads = PROXY_RUNS
) -> Mixture:
    """Fit the model to the runs. ``critical``: prior median of B_c, and the standard deviation of its logarithm."""
    grid, factors = _ParameterGrid(sizes, critical, spreads), _Factors(runs, sizes)
    mixture = grid.mix(factors)
    for _ in range(_ROUNDS if factors.censored.any() else 0):
        if not factors.update(mixture):
            break
        mixture = grid.mix(factors)
    return mixture


class _Factors:
    """The runs as Gaussian factors of ln N(b): exact if they reached the target, approximate if they were censored."""

    def __init__(self, runs: Sequence[Observation], sizes: tuple[int, ...]):
        self.place = np.array([sizes.index(run.batch_size) for run in runs], dtype=np.intp)
        self.seed = _seeds(runs)
        self.logs = np.log([run.samples for run in runs]) if runs else np.zeros(0)
        self.spacing = np.array([run.spacing for run in runs])
        self.censored = np.array([not run.reached for run in runs], dtype=bool)
        self._ends = self.logs[self.censored]
        # One per censored run.
        self.precision = np.full(len(self._ends), _FLAT)

    def update(self, mixture: Mixture) -> bool:
        """Update the factors of the censored runs, all at once; return whether they changed.

        With mean m and variance v of x(b), and the run's own factor of precision t at y, the posterior without that
        factor (the cavity) has precision 1 / v_ = 1 / v - t and mean m_ = m + v_ t (m - y). Multiplied by the tail
        P(ln N > end) = Phi(z), z = (m_ - end) / sqrt(w), w = v_ + sigma^2 + spacing^2, it has, with the inverse Mills
        ratio l = phi(z) / Phi(z), the mean m_ + l v_ / sqrt(w) and the variance v_ - l (z + l) v_^2 / w. The new factor
        is the Gaussian that turns the cavity into one with that mean and variance.
        """
        at = self.place[self.censored]
        mean, variance = mixture.log_samples[at], np.diag(mixture.log_samples_covariance)[at]
        value, precision = self.logs[self.censored], self.precision
        # A mixture is not a Gaussian: the precision of the cavity may come out negative.
        cavity_variance = 1 / np.maximum(1 / variance - precision, _MIN_CAVITY / variance)
        cavity_mean = mean + (cavity_variance * precision) * (mean - value)
        total = cavity_variance + mixture.noise_sd**2 + self.spacing[self.censored] ** 2
        z = (cavity_mean - self._ends) / np.sqrt(total)
        mills = _inverse_mills(z)
        tilted_mean = cavity_mean + cavity_variance / np.sqrt(total) * mills
        tilted_variance = cavity_variance - cavity_variance**2 / total * mills * (z + mills)
        new = np.maximum(1 / tilted_variance - 1 / cavity_variance, _FLAT)
        natural = tilted_mean / tilted_variance - cavity_mean / cavity_variance
        centre = np.where(new > _FLAT, natural / new, self._ends)
        # Halfway to the new factor, so that the rounds converge.
        share = np.where(precision > _FLAT, 0.5, 1.0)
        self.precision = (1 - share) * precision + share * new
        self.logs = self.logs.copy()
        rhs = (1 - share) * precision * value + share * new * centre
        self.logs[self.censored] = rhs / self.precision
        shift = np.abs(self.logs[self.censored] - value) * np.minimum(1.0, self.precision * variance)
        return bool((np.abs(self.precision - precision) * variance + shift > 2e-2).any())


def _inverse_mills(z: Array) -> Array:
    """Inverse Mills ratio phi(z) / Phi(z), the derivative of ln Phi(z)."""
    # exp(-z^2 / 2) / sqrt(2 pi) over erfc(-z / sqrt(2)) / 2; erfcx is erfc without the factor that would underflow.
    return np.asarray(math.sqrt(2 / math.pi) / erfcx(-z / math.sqrt(2)))


def _seeds(runs: Sequence[Observation]) -> NDArray[np.intp]:
    """Number of each run's seed, (runs,)."""
    # A censored run's factor is of ln N(b) without its seed.
    names = [(run.seed, -1) if run.reached and run.seed is not None else (None, i) for i, run in enumerate(runs)]
    index = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return np.array([index[name] for name in names], dtype=np.intp)


def _sums(values: Array, groups: NDArray[np.intp], count: int) -> Array:
    """Sums of ``values`` (h, runs) over the runs of each group, (h, count)."""
    return np.array([np.bincount(groups, row, count) for row in values], dtype=np.float64)


class _ParameterGrid:
    """Grid of the hyperparameters: all combinations of B_c and p (c,), and of delta, sigma and rho (h,)."""

    def __init__(self, sizes: tuple[int, ...], critical: tuple[float, float], spreads: Spreads):
        middle, sd = critical
        self._critical = middle * np.exp(sd * _CRITICAL_STEPS)
        exponents = np.array(list(EXPONENTS))
        ratio = np.array(sizes, dtype=float)[None, None, :] / self._critical[:, None, None]
        self._curves = np.log1p(ratio ** exponents[None, :, None]).reshape(-1, len(sizes))
        shape = np.log(list(EXPONENTS.values()))[None, :] - 0.5 * _CRITICAL_STEPS[:, None] ** 2
        seeds = spreads.seed_sd * np.exp(SEED_SPREAD * _SEED_STEPS)
        hyper = np.meshgrid(list(spreads.deviations), seeds, list(COMMON), indexing="ij")
        self._deviation, self._seed, self._common = (axis.ravel() for axis in hyper)
        chances = (np.log(list(spreads.deviations.values())), -0.5 * _SEED_STEPS**2, np.log(list(COMMON.values())))
        spread = np.sum(np.meshgrid(*chances, indexing="ij"), axis=0)
        self._prior = spread.reshape(-1, 1) + shape.reshape(1, -1)
        common = 0.5 * (size_correlation(sizes) + np.eye(len(sizes)))
        self._covariance = self._deviation[:, None, None] ** 2 * common + _LEVEL_SD**2

    def mix(self, factors: _Factors) -> Mixture:
        """The posterior given the factors."""
        at, place = np.unique(factors.place, return_inverse=True)  # the k batch sizes with runs, and each run's one
        level = factors.logs.mean() if len(factors.logs) else 0.0
        means, noise, among = self._measured(factors, place, len(at), factors.logs - level)

        # The level u is all but flat, so each f may be centred on the batch sizes with runs.
        curves = self._curves - (self._curves[:, at].mean(axis=1, keepdims=True) if len(at) else 0.0)
        prior = self._covariance  # P (h, n, n)
        matrix = prior[:, at[:, None], at] + noise  # M (h, k, k)
        inverse = np.linalg.inv(matrix)
        gain = inverse @ prior[:, at, :]  # G (h, k, n)
        # The square (m - f_k)^T M^-1 (m - f_k) for all combinations, (h, c), expanded: no array of h times c times k.
        curves_at = curves[:, at]  # f_k (c, k)
        solution = np.einsum("hkl,hl->hk", inverse, means)  # M^-1 m
        pairs = (curves_at[:, :, None] * curves_at[:, None, :]).reshape(len(curves_at), -1)  # f_k f_k^T (c, k k)
        square = (solution * means).sum(axis=1)[:, None] - 2 * solution @ curves_at.T
        square = square + inverse.reshape(len(inverse), -1) @ pairs.T
        weights = self._prior + (among - 0.5 * np.linalg.slogdet(matrix)[1])[:, None] - 0.5 * square  # (h, c)
        weights = np.exp(np.maximum(weights - weights.max(), -500.0))
        weights /= weights.sum()
        by_hyper, by_curve = weights.sum(axis=1), weights.sum(axis=0)

        # E[x] = G^T m + T^T f is linear in f, so given h the mixture over the curves has the mean G^T m + T^T E[f] and
        # the covariance Cov[x] + T^T Cov[f] T (law of total covariance); the same law then mixes over h.
        carry = np.eye(curves.shape[1]) - np.einsum("nk,hkm->hnm", np.eye(curves.shape[1])[:, at], gain)  # T (h, n, n)
        share = weights / by_hyper[:, None]
        curve_mean = share @ curves  # E[f] (h, n)
        second = (share[:, None, :] * curves.T) @ curves  # E[f f^T] (h, n, n)
        curve_covariance = second - curve_mean[:, :, None] * curve_mean[:, None, :]
        centre = np.einsum("hk,hkn->hn", means, gain) + np.einsum("hn,hnm->hm", curve_mean, carry)
        mean = by_hyper @ centre
        off = centre - mean
        within = prior - prior[:, :, at] @ gain + carry.transpose(0, 2, 1) @ curve_covariance @ carry
        covariance = np.einsum("h,hnm->nm", by_hyper, within) + (off.T * by_hyper) @ off
        return Mixture(
            log_samples=mean + level,
            log_samples_covariance=(covariance + covariance.T) / 2,
            shares=by_hyper,
            centres=centre + level,
            spreads=within,
            noise_sd=math.exp(float(by_hyper @ np.log(self._seed))),
            own_sd=math.exp(float(by_hyper @ np.log(self._seed * np.sqrt(1 - self._common)))),
            critical_batch_size=self._interval(by_curve),
            misfit=self._is_misfit(by_hyper),
        )

    def _measured(self, factors: _Factors, place: NDArray[np.intp], k: int, logs: Array) -> tuple[Array, Array, Array]:
        """Reduce the runs to mean m (h, k) and covariance R (h, k, k) of ln N at the k batch sizes that have runs, and
        the log likelihood (h,) of what remains: the differences between runs of one batch size.

        With W (runs, runs) the diagonal precisions of e, S (runs, seeds) and v = rho sigma^2, the runs have the
        covariance W^-1 + v S S^T; its inverse V is W - W S (1 / v + S^T W S)^-1 S^T W (Woodbury), where S^T W S is
        diagonal. With A (runs, k) the membership of the runs in batch sizes, ``place``, generalized least squares gives
        R = (A^T V A)^-1 and m = R A^T V y. Neither A nor S is formed: with ten thousand runs they would fill gigabytes.
        """
        seeds = int(factors.seed.max(initial=-1)) + 1
        variance = self._seed[:, None] ** 2
        precision = 1 / (variance * (1 - self._common[:, None]) + factors.spacing**2)  # diagonal of W (h, runs)
        # A censored run's factor has all of its variance in it.
        precision = np.where(factors.censored, 1.0, precision)
        if factors.censored.any():
            precision[:, factors.censored] = factors.precision
        of_seed = _sums(precision, factors.seed, seeds)  # diagonal of S^T W S (h, seeds)
        is_shared = np.bincount(factors.seed, ~factors.censored, seeds) > 0
        shared = variance * self._common[:, None] * is_shared  # v (h, seeds)
        back = shared / (1 + shared * of_seed)  # (1 / v + S^T W S)^-1 (h, seeds)
        cross = _sums(precision, factors.seed * k + place, seeds * k).reshape(len(precision), seeds, k)  # S^T W A
        rhs = precision * logs  # W y (h, runs)
        by_seed = _sums(rhs, factors.seed, seeds)  # S^T W y
        own = _sums(precision, place, k)[:, :, None] * np.eye(k)
        total = own - (cross * back[:, :, None]).transpose(0, 2, 1) @ cross  # A^T V A
        noise = np.linalg.inv(total)  # R
        sums = _sums(rhs, place, k) - np.einsum("hsk,hs->hk", cross, back * by_seed)  # A^T V y (h, k)
        means = np.einsum("hkl,hl->hk", noise, sums)  # m
        # y^T V y - m^T A^T V y: the square that the means leave.
        square = (rhs * logs).sum(axis=1) - (back * by_seed**2).sum(axis=1) - (means * sums).sum(axis=1)
        # ln |V| + ln |R|. A censored run's factor does not inform its variance.
        own = np.where(factors.censored, 0.0, np.log(precision)).sum(axis=1)
        own = own - np.log1p(shared * of_seed).sum(axis=1) + np.linalg.slogdet(noise)[1]
        return means, noise, 0.5 * (own - square)

    def _is_misfit(self, by_hyper: Array) -> bool:
        wide = self._deviation > MISFIT
        before = np.exp(self._prior - self._prior.max()).sum(axis=1)
        odds, odds_before = (float(shares[wide].sum() / shares[~wide].sum()) for shares in (by_hyper, before))
        return odds > MISFIT_ODDS * odds_before

    def _interval(self, weights: Array) -> tuple[float, float, float]:
        # Median and ends of the 90 % interval of B_c; each grid point represents the interval around it.
        share = weights.reshape(len(self._critical), -1).sum(axis=1)
        below = np.cumsum(share) - share / 2
        median, low, high = np.exp(np.interp((0.5, 0.05, 0.95), below, np.log(self._critical)))
        return float(median), float(low), float(high)
