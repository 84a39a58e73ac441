"""The sample efficiency record of one curve pooled over the runs of all batch sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev
from typing import Any

import numpy as np

from wattune.records import EfficiencyPoint, LearningCurve, SampleEfficiency
from wattune.sample_efficiency.choice import LogTimes, choose
from wattune.sample_efficiency.posterior import CurvePosterior, Observation, fit
from wattune.sample_efficiency.relative_samples import last_interval


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
    **fields: Any,
) -> SampleEfficiency:
    """Write the posterior of these runs as a record, with the best batch size if step times are given.

    ``relative_samples`` is the median, ``low`` and ``high`` the 90 % band on the target workload; ``samples`` is the
    median on the proxy, from all runs. ``fields``: the record's fields that the posterior does not have.
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
    choice = None if log_step_times is None else choose(posterior, log_step_times)
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
        **fields,
    )


def with_critical_batch_size(curve: SampleEfficiency, runs: Sequence[Observation]) -> SampleEfficiency:
    """Add the critical batch size that the runs imply, if they have two batch sizes or more."""
    if len({run.batch_size for run in runs}) < 2:
        return curve
    posterior = fit(runs, [point.batch_size for point in curve.points])
    critical = {"critical_batch_size": posterior.critical_batch_size[0], "critical_log_sd": posterior.critical_sd}
    return curve.model_copy(update=critical)
