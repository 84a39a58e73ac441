"""The model behind ``curve``: samples to the target over batch sizes, and what differs from run to run.

    of a run:  ln N = u + ln(1 + (b / B_c)^p) + deviation(b) + seed + rest

With p = 1 that is the trade of McCandlish et al. 2018 (arXiv 1812.06162, section 2): samples to a target grow as
1 + b / B_c with a critical batch size B_c; other exponents bend the curve earlier or later. A measured workload follows
such a curve to some percent only, hence a deviation per batch size, which neighbours have partly in common. Runs with
the same seed begin with the same weights and see the same samples, so a part of what the seed does may be common to all
batch sizes, and then leaves their quotients alone. How large the deviation is, how much runs differ and how much of
that is the seed's is learned along: all are summed over a grid, as B_c and p are, and given those everything is
Gaussian, so the posterior is a finite mixture in closed form. A few runs therefore say something of all batch sizes,
and with many runs of one its own mean counts alone.

A run that ended before the target (censored) says that it needs more than its samples: the probability of that, which
is a Gaussian's tail (Tobin 1958), is replaced by the Gaussian factor that leaves mean and variance of ln N(b) the same
(expectation propagation, Minka 2001).

The constants come from small experiments of our own: two kinds of small models, batch sizes to 128.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LENGTH: Final = 1.5
"""Doublings of the batch size over which a deviation, or what the transfer changes, is partly the same."""

EXPONENTS: Final = {0.5: 0.2, 0.75: 0.3, 1.0: 0.35, 1.5: 0.15}
"""Exponent p -> its probability before any run."""

DEVIATIONS: Final = {0.03: 0.4, 0.07: 0.3, 0.15: 0.15, 0.32: 0.15}
"""Standard deviation of ln N(b) around the curve -> its probability before any run."""

MISFIT: Final = 0.1
"""Where the deviation is larger than this with a probability above a half, the curve does not describe the runs."""

SEED_SD: Final = 0.12
SEED_SPREAD: Final = 0.5
"""Median of the standard deviation of ln N over runs, and the standard deviation of its logarithm."""

COMMON: Final = {0.0: 0.5, 0.35: 0.25, 0.7: 0.25}
"""Share of that variance which runs of the same seed have in common -> its probability before any run."""

_CRITICAL_STEPS = np.linspace(-3.3, 3.3, 21)  # standard deviations of ln B_c
_SEED_STEPS = np.linspace(-2.0, 2.0, 5)
_LEVEL_SD = 10.0  # of u around the mean of the runs: flat
_NOTHING = 1e-9  # precision of a factor that says nothing
_REST = 0.2  # of the precision, at least, is what is known without a censored run
_ROUNDS = 6


class Observation(NamedTuple):
    """One run: ``samples`` to the target, or up to its end where it did not reach it (censored).

    ``seed``: runs of the same seed may have something in common; None: with no other run. ``spacing``: standard
    deviation of ln(samples) that the distance between two evaluations leaves open.
    """

    batch_size: int
    samples: float
    reached: bool = True
    seed: int | None = None
    spacing: float = 0.0


def alike(sizes: Sequence[int]) -> Array:
    """How much two batch sizes have in common, (n, n)."""
    places = np.log2(np.array(sizes, dtype=float)) / LENGTH
    return np.asarray(np.exp(-0.5 * (places[:, None] - places[None, :]) ** 2))


class Mixture(NamedTuple):
    """Mean (n,) and covariance (n, n) of ln N(b), and what else the runs tell; see ``CurvePosterior``.

    ``shares`` (h,), ``centres`` (h, n) and ``spreads`` (h, n, n): the Gaussian parts that it is mixed of.
    """

    mean: Array
    covariance: Array
    shares: Array
    centres: Array
    spreads: Array
    noise_sd: float
    own_sd: float
    critical: tuple[float, float, float]
    exponent: float
    misfit: bool


def pooled(runs: Sequence[Observation], sizes: tuple[int, ...], critical: tuple[float, float]) -> Mixture:
    """What the runs say of ``sizes``, with median and logarithmic standard deviation of B_c before them."""
    grid, factors = _Grid(sizes, critical), _Factors(runs, sizes)
    mixture = grid.mix(factors)
    for _ in range(_ROUNDS if factors.censored.any() else 0):
        if not factors.update(mixture):
            break
        mixture = grid.mix(factors)
    return mixture


class _Factors:
    """The runs as Gaussian factors of ln N(b): a run that reached the target is one, a censored one is made to be."""

    def __init__(self, runs: Sequence[Observation], sizes: tuple[int, ...]):
        self.place = np.array([sizes.index(run.batch_size) for run in runs], dtype=np.intp)
        self.seeds = _seeds(runs)
        self.logs = np.log([run.samples for run in runs]) if runs else np.zeros(0)
        self.spacing = np.array([run.spacing for run in runs])
        self.censored = np.array([not run.reached for run in runs], dtype=bool)
        self._ended = self.logs[self.censored]
        # Of a censored run's factor.
        self.precision = np.full(len(self._ended), _NOTHING)

    def update(self, mixture: Mixture) -> bool:
        """Make the factors of the censored runs anew; whether they changed."""
        at = self.place[self.censored]
        mean, variance = mixture.mean[at], np.diag(mixture.covariance)[at]
        value, precision = self.logs[self.censored], self.precision
        # Without this run's own factor. A mixture is no Gaussian: there the rest may seem to say less than nothing.
        without = 1 / np.maximum(1 / variance - precision, _REST / variance)
        middle = mean + (without * precision) * (mean - value)
        # with the tail of the normal distribution in its place,
        total = without + mixture.noise_sd**2 + self.spacing[self.censored] ** 2
        z = (middle - self._ended) / np.sqrt(total)
        slope = _slope(z)
        moved = middle + without / np.sqrt(total) * slope
        left = without - without**2 / total * slope * (z + slope)
        # and the Gaussian factor that gives the same mean and variance: halfway there, so that it comes to rest.
        new = np.maximum(1 / left - 1 / without, _NOTHING)
        centre = np.where(new > _NOTHING, (moved / left - middle / without) / new, self._ended)
        share = np.where(precision > _NOTHING, 0.5, 1.0)
        self.precision = (1 - share) * precision + share * new
        self.logs = self.logs.copy()
        weighted = (1 - share) * precision * value + share * new * centre
        self.logs[self.censored] = weighted / self.precision
        moving = np.abs(self.logs[self.censored] - value) * np.minimum(1.0, self.precision * variance)
        return bool((np.abs(self.precision - precision) * variance + moving > 2e-2).any())


def _slope(z: Array) -> Array:
    """Of the logarithm of the normal distribution function: density over probability."""
    tail = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in np.maximum(z, -8.0)])
    near = np.exp(-0.5 * np.maximum(z, -8.0) ** 2) / math.sqrt(2 * math.pi) / tail
    return np.where(z < -8.0, -z - 1 / np.minimum(z, -8.0), near)


def _seeds(runs: Sequence[Observation]) -> Array:
    """Which runs have a seed in common, (runs, seeds)."""
    # A censored run's factor is of ln N(b) without its seed.
    names = [(run.seed, -1) if run.reached and run.seed is not None else (None, i) for i, run in enumerate(runs)]
    index = {name: place for place, name in enumerate(dict.fromkeys(names))}
    return np.eye(len(index))[[index[name] for name in names]] if runs else np.zeros((0, 0))


class _Grid:
    """Critical batch size and exponent in all combinations (c,); deviation, sd of a run and its common part (h,)."""

    def __init__(self, sizes: tuple[int, ...], critical: tuple[float, float]):
        middle, sd = critical
        self._critical = middle * np.exp(sd * _CRITICAL_STEPS)
        exponents = np.array(list(EXPONENTS))
        ratio = np.array(sizes, dtype=float)[None, None, :] / self._critical[:, None, None]
        self._curves = np.log1p(ratio ** exponents[None, :, None]).reshape(-1, len(sizes))
        self._exponents = np.tile(exponents, len(self._critical))
        shape = np.log(list(EXPONENTS.values()))[None, :] - 0.5 * _CRITICAL_STEPS[:, None] ** 2
        seeds = SEED_SD * np.exp(SEED_SPREAD * _SEED_STEPS)
        hyper = np.meshgrid(list(DEVIATIONS), seeds, list(COMMON), indexing="ij")
        self._deviation, self._seed, self._common = (axis.ravel() for axis in hyper)
        chances = (np.log(list(DEVIATIONS.values())), -0.5 * _SEED_STEPS**2, np.log(list(COMMON.values())))
        spread = np.sum(np.meshgrid(*chances, indexing="ij"), axis=0)
        self._prior = spread.reshape(-1, 1) + shape.reshape(1, -1)
        common = 0.5 * (alike(sizes) + np.eye(len(sizes)))
        self._covariance = self._deviation[:, None, None] ** 2 * common + _LEVEL_SD**2

    def mix(self, factors: _Factors) -> Mixture:
        """The posterior of the factors."""
        at, place = np.unique(factors.place, return_inverse=True)
        level = factors.logs.mean() if len(factors.logs) else 0.0
        means, noise, among = self._measured(factors, np.eye(len(at))[place], factors.logs - level)

        curves = self._curves - (self._curves[:, at].mean(axis=1, keepdims=True) if len(at) else 0.0)
        prior = self._covariance
        matrix = prior[:, at[:, None], at] + noise
        inverse = np.linalg.inv(matrix)
        gain = inverse @ prior[:, at, :]  # (h, k, n)
        # (means - curve) matrix^-1 (means - curve), for all combinations.
        known = curves[:, at]  # (c, k)
        solved = np.einsum("hkl,hl->hk", inverse, means)
        pairs = (known[:, :, None] * known[:, None, :]).reshape(len(known), -1)
        square = (solved * means).sum(axis=1)[:, None] - 2 * solved @ known.T
        square = square + inverse.reshape(len(inverse), -1) @ pairs.T
        weights = self._prior + (among - 0.5 * np.linalg.slogdet(matrix)[1])[:, None] - 0.5 * square
        weights = np.exp(np.maximum(weights - weights.max(), -500.0))
        weights /= weights.sum()
        by_hyper, by_curve = weights.sum(axis=1), weights.sum(axis=0)

        # Given both, ln N is at means gain + curve (1 - gain at k); over the curves that has this mean and spread.
        turned = np.eye(curves.shape[1]) - np.einsum("nk,hkm->hnm", np.eye(curves.shape[1])[:, at], gain)
        share = weights / by_hyper[:, None]
        middle = share @ curves  # (h, n)
        spread = (share[:, None, :] * curves.T) @ curves - middle[:, :, None] * middle[:, None, :]
        centre = np.einsum("hk,hkn->hn", means, gain) + np.einsum("hn,hnm->hm", middle, turned)
        mean = by_hyper @ centre
        off = centre - mean
        inside = prior - prior[:, :, at] @ gain + turned.transpose(0, 2, 1) @ spread @ turned
        covariance = np.einsum("h,hnm->nm", by_hyper, inside) + (off.T * by_hyper) @ off
        return Mixture(
            mean=mean + level,
            covariance=(covariance + covariance.T) / 2,
            shares=by_hyper,
            centres=centre + level,
            spreads=inside,
            noise_sd=math.exp(float(by_hyper @ np.log(self._seed))),
            own_sd=math.exp(float(by_hyper @ np.log(self._seed * np.sqrt(1 - self._common)))),
            critical=self._interval(by_curve),
            exponent=float(by_curve @ self._exponents),
            misfit=bool(by_hyper[self._deviation > MISFIT].sum() > 0.5),
        )

    def _measured(self, factors: _Factors, member: Array, logs: Array) -> tuple[Array, Array, Array]:
        """What the runs alone say of ln N at the k batch sizes that they are at: mean (h, k) and covariance (h, k, k),
        and the logarithm of the likelihood (h,) that leaves to the differences between runs of one batch size.

        With W the precisions of the runs apart from their seeds, and S (runs, seeds), the runs' covariance is
        W^-1 + v S S^T, and its inverse (Woodbury) W - W S (1 / v + S^T W S)^-1 S^T W, where S^T W S is diagonal.
        """
        variance = self._seed[:, None] ** 2
        precision = 1 / (variance * (1 - self._common[:, None]) + factors.spacing**2)  # (h, runs)
        shared = np.broadcast_to(variance * self._common[:, None], precision.shape)
        # A censored run's factor has all of its variance in it.
        precision = np.where(factors.censored, 1.0, precision)
        if factors.censored.any():
            precision[:, factors.censored] = factors.precision
        of_seed = precision @ factors.seeds  # (h, seeds)
        shared = shared[:, :1] * (factors.seeds.T @ ~factors.censored > 0) if len(logs) else of_seed
        back = shared / (1 + shared * of_seed)
        crossed = np.einsum("hr,rs,rk->hsk", precision, factors.seeds, member)
        weighted = precision * logs
        by_seed = weighted @ factors.seeds
        total = _diagonal(precision @ member) - np.einsum("hsk,hs,hsl->hkl", crossed, back, crossed)
        noise = np.linalg.inv(total)
        sums = weighted @ member - np.einsum("hsk,hs->hk", crossed, back * by_seed)
        means = np.einsum("hkl,hl->hk", noise, sums)
        square = (weighted * logs).sum(axis=1) - (back * by_seed**2).sum(axis=1) - (means * sums).sum(axis=1)
        # A censored run's factor is no likelihood of its variance.
        own = np.where(factors.censored, 0.0, np.log(precision)).sum(axis=1)
        own = own - np.log1p(shared * of_seed).sum(axis=1) + np.linalg.slogdet(noise)[1]
        return means, noise, 0.5 * (own - square)

    def _interval(self, weights: Array) -> tuple[float, float, float]:
        # Each place of the grid stands for the stretch around it.
        share = weights.reshape(len(self._critical), -1).sum(axis=1)
        below = np.cumsum(share) - share / 2
        median, low, high = np.exp(np.interp((0.5, 0.05, 0.95), below, np.log(self._critical)))
        return float(median), float(low), float(high)


def _diagonal(values: Array) -> Array:
    return values[:, :, None] * np.eye(values.shape[1])
