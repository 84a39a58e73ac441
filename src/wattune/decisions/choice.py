"""Which batch size is best, and how sure that is: from the time of a sample and from how many samples it takes.

The time to the target is T*(b) N(b), with T*(b) the seconds per sample at the fastest setting that the cap allows.
Both are known up to a standard deviation of their logarithm, so the best batch size is, too. What a wrong one costs is
counted over draws that are the same each time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattune.decisions.curve import Array, CurvePosterior, scattered

DRAWS = 4096
"""Possible truths that are looked at: a probability of 1 % is known to 0.16 %."""

LogTimes = Mapping[int, tuple[float, float]]
"""Batch size -> mean and standard deviation of ln(seconds per sample)."""


@dataclass(frozen=True, eq=False)
class Choice:
    """The batch size of the least expected logarithm of the time to the target, and what is not known of it.

    ``p_best``: batch size -> probability that it is the best one. ``regrets`` (draws,): how much longer ``best`` takes
    than the best one in each possible truth, as a share: 0.02 is 2 %.
    """

    best: int
    p_best: dict[int, float]
    regrets: Array

    @property
    def expected_regret(self) -> float:
        """How much longer than the best batch size this one is expected to take, as a share."""
        return float(self.regrets.mean())

    def p_regret_over(self, share: float) -> float:
        """The probability that it takes longer than the best one by more than this share."""
        return float((self.regrets > share).mean())


def choose(curve: CurvePosterior, log_step_times: LogTimes, *, transfer: bool = True) -> Choice:
    """The best of the batch sizes that have a step time.

    ``transfer``: for the target, of which the curve's runs are a proxy. A batch size none of whose runs reached the
    target is never chosen: its samples are known from below only.

    Raises: ValueError where that leaves none, and for a batch size that the curve does not have.
    """
    if strange := sorted(set(log_step_times) - set(curve.batch_sizes)):
        raise ValueError(f"no samples are known of batch sizes {strange}")
    sizes = [size for size in curve.batch_sizes if size in log_step_times]
    lost = np.array([size in curve.lost for size in sizes], dtype=bool)
    if lost.all():
        raise ValueError("no batch size has both a step time and a run that reached the target")
    at = [curve.batch_sizes.index(size) for size in sizes]
    times = np.array([log_step_times[size] for size in sizes])
    mean = curve.mean[at] + times[:, 0]
    covariance = (curve.covariance if transfer else curve.proxy_covariance)[np.ix_(at, at)] + np.diag(times[:, 1] ** 2)
    return weighed(sizes, mean, covariance, picked=sizes[int(np.argmin(np.where(lost, np.inf, mean)))])


def weighed(sizes: Sequence[int], mean: Array, covariance: Array, *, picked: int) -> Choice:
    """What picking this batch size means where ln(time to the target) has this mean (n,) and covariance (n, n)."""
    truths = mean + scattered(covariance, DRAWS)
    best = np.bincount(truths.argmin(axis=1), minlength=len(sizes)) / DRAWS
    return Choice(
        best=picked,
        p_best={size: float(share) for size, share in zip(sizes, best, strict=True)},
        regrets=np.expm1(truths[:, list(sizes).index(picked)] - truths.min(axis=1)),
    )


def contenders(curve: CurvePosterior, log_step_times: LogTimes, sds: float = 2.33) -> tuple[int, ...]:
    """The batch sizes that may be the best one: those behind by at most so many standard deviations (2.33: 1 %)."""
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
