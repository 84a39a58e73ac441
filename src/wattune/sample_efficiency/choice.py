"""The best batch size and its probability, from the time of a sample and the number of samples to the target.

The time to the target is T*(b) N(b), with T*(b) the seconds per sample at the fastest setting that the cap allows.
Both factors have a standard deviation of their logarithm, so the best batch size is uncertain too. The cost of a wrong
choice is the mean over draws of that uncertainty, which are the same in every call.

The record of one curve that is pooled over the runs of all batch sizes is made here too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import stdev
from typing import Any

import numpy as np

from wattune.errors import InputError
from wattune.records import EfficiencyPoint, LearningCurve, ProxyObservation, SampleEfficiency
from wattune.sample_efficiency.posterior import Array, CurvePosterior, Observation, fit, gaussian_draws
from wattune.sample_efficiency.relative_samples import last_interval

DRAWS = 4096
"""Number of Monte Carlo draws: the standard error of a probability of 1 % is 0.16 %."""

LogTimes = Mapping[int, tuple[float, float]]
"""Batch size -> mean and standard deviation of ln(seconds per sample)."""


P_SWITCH = 0.9
"""Least probability of being faster than the user's own batch size for which another one is chosen."""


@dataclass(frozen=True)
class OwnBatchSize:
    """The user's own batch size beside its rival, the batch size that would be chosen without it.

    ``p_faster``: the probability that training at the rival takes less time; ``gain``: the expected share of the time
    that it saves, negative if it takes longer. If they are the same batch size, both are None.
    """

    batch_size: int
    rival: int
    p_faster: float | None = None
    gain: float | None = None

    @property
    def choice(self) -> int:
        """The batch size to choose: the rival if it is faster with a probability of ``P_SWITCH`` or more."""
        return self.batch_size if self.p_faster is None or self.p_faster < P_SWITCH else self.rival


@dataclass(frozen=True, eq=False)
class BatchSizeChoice:
    """The batch size with the least expected logarithm of the time to the target, and the uncertainty of the choice.

    ``p_best``: batch size -> probability that it is the best one. ``regrets`` (draws,): in each draw, the fraction by
    which ``best`` takes longer than the best one: 0.02 is 2 %. ``own``: why ``best`` is the user's own batch size, or
    another one; None if there is none to compare with.
    """

    best: int
    p_best: dict[int, float]
    regrets: Array
    own: OwnBatchSize | None = None

    @property
    def expected_regret(self) -> float:
        """Expected fraction by which this batch size takes longer than the best one."""
        return float(self.regrets.mean())


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


def choose(
    curve: CurvePosterior, log_step_times: LogTimes, *, transfer: bool = True, own: int | None = None
) -> BatchSizeChoice:
    """Choose among the batch sizes that have a step time.

    ``transfer``: choose for the target workload, whose proxy the curve's runs trained. ``own``: the user's own batch
    size, which is kept unless another one is faster with a probability of ``P_SWITCH`` or more. A batch size is never
    chosen if none of its runs reached the target: only a lower bound of its samples is known.

    Raises: ValueError if no batch size is left, or if one is not on the curve.
    """
    if unknown := sorted(set(log_step_times) - set(curve.batch_sizes)):
        raise ValueError(f"the curve has no batch sizes {unknown}")
    sizes, mean, covariance = _log_costs(
        curve, log_step_times, curve.covariance if transfer else curve.proxy_covariance
    )
    is_lost = np.array([size in curve.lost for size in sizes], dtype=bool)
    if is_lost.all():
        raise ValueError("no batch size has both a step time and a run that reached the target")
    best = sizes[int(np.argmin(np.where(is_lost, np.inf, mean)))]
    beside = None
    if own in sizes and own not in curve.lost:
        beside = beside_own(curve, log_step_times, own=own, rival=best)
    picked = best if beside is None else beside.choice
    return replace(assess(sizes, mean, covariance, picked=picked), own=beside)


def beside_own(
    curve: CurvePosterior, log_step_times: LogTimes, *, own: int, rival: int, exponent: int = 1
) -> OwnBatchSize:
    """Compare the time to the target at ``own`` and at ``rival`` by draws of the mixture, which is not a Gaussian.

    ``log_step_times`` may be the logarithms of any other cost of a sample; the gain is that of its total raised to
    ``exponent``.
    """
    if rival == own:
        return OwnBatchSize(own, rival)
    (mean, sd), (own_mean, own_sd) = log_step_times[rival], log_step_times[own]
    samples = curve.draws(DRAWS)[:, [curve.batch_sizes.index(size) for size in (rival, own)]]
    noise = math.hypot(sd, own_sd) * np.random.default_rng(1).standard_normal(DRAWS)
    apart = samples[:, 0] - samples[:, 1] + mean - own_mean + noise
    return OwnBatchSize(own, rival, float((apart < 0).mean()), float(-np.expm1(exponent * apart).mean()))


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
    sizes, mean, covariance = _log_costs(curve, log_step_times, curve.covariance)
    if not sizes:
        return ()
    first, variance = int(np.argmin(mean)), np.diag(covariance)
    apart = np.sqrt(np.maximum(0.0, variance + variance[first] - 2 * covariance[first]))
    return tuple(size for size, is_near in zip(sizes, mean - mean[first] <= sds * apart, strict=True) if is_near)


def _log_costs(curve: CurvePosterior, log_step_times: LogTimes, covariance: Array) -> tuple[list[int], Array, Array]:
    """The batch sizes with a step time, and mean and covariance of ln(time to the target), by that of the samples."""
    sizes = [size for size in curve.batch_sizes if size in log_step_times]
    at = [curve.batch_sizes.index(size) for size in sizes]
    times = np.array([log_step_times[size] for size in sizes]).reshape(-1, 2)
    return sizes, curve.mean[at] + times[:, 0], covariance[np.ix_(at, at)] + np.diag(times[:, 1] ** 2)


def observation_of(run: LearningCurve) -> Observation:
    """Convert a learning curve to its samples to target; a run that ended before the target counts with its budget."""
    return Observation(
        run.batch_size,
        run.samples if run.reached else max(run.samples, run.budget_samples),
        run.reached,
        run.seed,
        # A uniform distribution over the interval in which the target was crossed.
        last_interval(run) / run.samples / math.sqrt(12) if run.reached else 0.0,
    )


def pooled_curve(
    posterior: CurvePosterior,
    runs: Sequence[Observation],
    *,
    log_step_times: LogTimes | None = None,
    own: int | None = None,
    **fields: Any,
) -> SampleEfficiency:
    """Write the posterior of these runs as a record, with the best batch size if step times are given.

    ``relative_samples`` is the median, ``low`` and ``high`` the 90 % band on the target workload; ``samples`` is the
    median on the proxy, from all runs. ``own``: the user's own batch size. ``fields``: the record's fields that the
    posterior does not have.
    """
    reached = {size: [r.samples for r in runs if r.batch_size == size and r.reached] for size in posterior.batch_sizes}
    points = []
    for place, size in enumerate(posterior.batch_sizes):
        is_lost = size in posterior.lost
        low, high = (None, None) if is_lost else posterior.band(size)
        points.append(
            EfficiencyPoint(
                batch_size=size,
                relative_samples=None if is_lost else float(np.exp(posterior.mean[place])),
                low=low,
                high=high,
                samples=None if is_lost or not runs else float(np.exp(posterior.log_samples[place])),
                samples_std=stdev(reached[size]) if len(reached[size]) > 1 else None,
                runs=posterior.runs[size],
                censored=posterior.censored[size],
            )
        )
    choice = None if log_step_times is None else choose(posterior, log_step_times, own=own)
    return SampleEfficiency(
        reference_batch_size=posterior.reference,
        points=tuple(points),
        strategy="pooled",
        covariance=tuple(tuple(row) for row in posterior.covariance.tolist()),
        runs_used=len(runs),
        censored=sum(not run.reached for run in runs),
        misfit=posterior.misfit,
        best=choice and choice.best,
        p_best=choice and choice.p_best,
        expected_regret=choice and choice.expected_regret,
        critical_batch_size=posterior.critical_batch_size[0] if runs else None,
        critical_log_sd=posterior.critical_sd if runs else None,
        observations=recorded(runs, posterior),
        whole_runs=posterior.whole,
        parameter_ratio=posterior.ratio,
        own_batch_size=own,
        p_faster=choice and choice.own and choice.own.p_faster,
        expected_gain=choice and choice.own and choice.own.gain,
        **fields,
    )


def recorded(runs: Sequence[Observation], posterior: CurvePosterior) -> tuple[ProxyObservation, ...]:
    """The runs as a record's values."""
    return tuple(ProxyObservation(**run._asdict(), left_out=run in posterior.left_out) for run in runs)


def posterior_of(record: SampleEfficiency) -> CurvePosterior | None:
    """The posterior of a record's runs, which its points only summarize; None if the record does not have them."""
    runs = [Observation(**run.model_dump(include=set(Observation._fields))) for run in record.observations]
    if not any(run.reached for run in runs):
        return None
    return fit(
        runs, [point.batch_size for point in record.points], whole=record.whole_runs, ratio=record.parameter_ratio
    )


def with_runs(
    curve: SampleEfficiency,
    runs: Sequence[Observation],
    *,
    own: int | None = None,
    whole: bool = False,
    ratio: float = 1.0,
) -> SampleEfficiency:
    """Add the runs, the user's own batch size, and the critical batch size if there are two batch sizes or more."""
    posterior = fit(runs, [point.batch_size for point in curve.points], whole=whole, ratio=ratio)
    fields: dict[str, Any] = {
        "observations": recorded(runs, posterior),
        "own_batch_size": own,
        "whole_runs": whole,
        "parameter_ratio": ratio,
    }
    if len({run.batch_size for run in runs}) > 1:
        fields |= {"critical_batch_size": posterior.critical_batch_size[0], "critical_log_sd": posterior.critical_sd}
    return curve.model_copy(update=fields)
