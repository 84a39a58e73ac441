"""The best batch size and its probability, from the time of a sample and the number of samples to the target.

The time to the target is T*(b) N(b), with T*(b) the seconds per sample at the fastest setting that the cap allows.
Both factors have a standard deviation of their logarithm, so the best batch size is uncertain too. The cost of a wrong
choice is the mean over draws of that uncertainty, which are the same in every call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattune.errors import InputError
from wattune.sample_efficiency.posterior import Array, CurvePosterior, gaussian_draws

DRAWS = 4096
"""Number of Monte Carlo draws: the standard error of a probability of 1 % is 0.16 %."""

LogTimes = Mapping[int, tuple[float, float]]
"""Batch size -> mean and standard deviation of ln(seconds per sample)."""


@dataclass(frozen=True, eq=False)
class BatchSizeChoice:
    """The batch size with the least expected logarithm of the time to the target, and the uncertainty of the choice.

    ``p_best``: batch size -> probability that it is the best one. ``regrets`` (draws,): in each draw, the fraction by
    which ``best`` takes longer than the best one: 0.02 is 2 %.
    """

    best: int
    p_best: dict[int, float]
    regrets: Array

    @property
    def expected_regret(self) -> float:
        """Expected fraction by which this batch size takes longer than the best one."""
        return float(self.regrets.mean())

    def p_regret_over(self, share: float) -> float:
        """Probability that it takes longer than the best one by more than this fraction."""
        return float((self.regrets > share).mean())


def given_times(step_s: Mapping[int, float]) -> dict[int, tuple[float, float]]:
    """Convert seconds per step to batch size -> mean and standard deviation of ln(seconds per sample).

    The times are taken as exact: the standard deviation is 0.

    Raises: InputError if there are none, or if one is out of range.
    """
    if not step_s:
        raise InputError("no step times", allowed="those of the batch sizes that the device can run")
    for size, seconds in step_s.items():
        if size < 1 or not 1e-9 < seconds < 1e9:
            raise InputError(f"step time of batch size {size}", value=seconds, allowed="seconds above 1e-9, below 1e9")
    return {size: (math.log(seconds / size), 0.0) for size, seconds in sorted(step_s.items())}


def choose(curve: CurvePosterior, log_step_times: LogTimes, *, transfer: bool = True) -> BatchSizeChoice:
    """Choose among the batch sizes that have a step time.

    ``transfer``: choose for the target workload, whose proxy the curve's runs trained. A batch size is never chosen if
    none of its runs reached the target: only a lower bound of its samples is known.

    Raises: ValueError if no batch size is left, or if one is not on the curve.
    """
    if unknown := sorted(set(log_step_times) - set(curve.batch_sizes)):
        raise ValueError(f"the curve has no batch sizes {unknown}")
    sizes = [size for size in curve.batch_sizes if size in log_step_times]
    is_lost = np.array([size in curve.lost for size in sizes], dtype=bool)
    if is_lost.all():
        raise ValueError("no batch size has both a step time and a run that reached the target")
    at = [curve.batch_sizes.index(size) for size in sizes]
    times = np.array([log_step_times[size] for size in sizes])
    mean = curve.mean[at] + times[:, 0]
    covariance = (curve.covariance if transfer else curve.proxy_covariance)[np.ix_(at, at)] + np.diag(times[:, 1] ** 2)
    return assess(sizes, mean, covariance, picked=sizes[int(np.argmin(np.where(is_lost, np.inf, mean)))])


def assess(sizes: Sequence[int], mean: Array, covariance: Array, *, picked: int) -> BatchSizeChoice:
    """Assess this pick, given mean (n,) and covariance (n, n) of ln(time to the target) over ``sizes``."""
    draws = mean + gaussian_draws(covariance, DRAWS)  # (draws, n)
    best = np.bincount(draws.argmin(axis=1), minlength=len(sizes)) / DRAWS
    return BatchSizeChoice(
        best=picked,
        p_best={size: float(share) for size, share in zip(sizes, best, strict=True)},
        regrets=np.expm1(draws[:, list(sizes).index(picked)] - draws.min(axis=1)),
    )


def contenders(curve: CurvePosterior, log_step_times: LogTimes, sds: float = 2.33) -> tuple[int, ...]:
    """The batch sizes that may be the best one: behind the first by at most ``sds`` standard deviations (2.33: 1 %)."""
    sizes = [size for size in curve.batch_sizes if size in log_step_times]
    if not sizes:
        return ()
    at = [curve.batch_sizes.index(size) for size in sizes]
    times = np.array([log_step_times[size] for size in sizes])
    mean, covariance = curve.mean[at] + times[:, 0], curve.covariance[np.ix_(at, at)] + np.diag(times[:, 1] ** 2)
    first = int(np.argmin(mean))
    return tuple(
        size
        for place, size in enumerate(sizes)
        if mean[place] - mean[first]
        <= sds * math.sqrt(max(0.0, covariance[place, place] + covariance[first, first] - 2 * covariance[place, first]))
    )
