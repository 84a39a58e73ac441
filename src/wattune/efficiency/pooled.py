"""The efficiency record of a curve through the runs of all batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import stdev
from typing import Any

import numpy as np

from wattune.decisions.choice import LogTimes, choose
from wattune.decisions.curve import CurvePosterior, Observation
from wattune.records import EfficiencyCurve, EfficiencyPoint


def pooled_curve(
    posterior: CurvePosterior,
    runs: Sequence[Observation],
    *,
    log_step_times: LogTimes | None = None,
    **fields: Any,
) -> EfficiencyCurve:
    """What the posterior of these runs says, and with step times also which batch size is best.

    ``relative_samples`` is the median, ``low`` and ``high`` the 90 % band on the target; ``samples`` is the median on
    the proxy, from all runs. ``fields`` are those of the record that the posterior does not know.
    """
    reached = {size: [r.samples for r in runs if r.batch_size == size and r.reached] for size in posterior.batch_sizes}
    points = []
    for place, size in enumerate(posterior.batch_sizes):
        lost = size in posterior.lost
        low, high = (None, None) if lost else posterior.band(size)
        points.append(
            EfficiencyPoint(
                batch_size=size,
                relative_samples=None if lost else float(np.exp(posterior.mean[place])),
                low=low,
                high=high,
                samples=None if lost or not runs else float(np.exp(posterior.log_samples[place])),
                samples_std=stdev(reached[size]) if len(reached[size]) > 1 else None,
                runs=posterior.runs[size],
                censored=posterior.censored[size],
            )
        )
    choice = None if log_step_times is None else choose(posterior, log_step_times)
    return EfficiencyCurve(
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
