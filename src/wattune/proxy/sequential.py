"""Proxy runs one after the other: the scheduler chooses each from the results so far, and stops when they suffice."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattune.proxy.sweep import Progress, RunRequest, cores, trainer
from wattune.records import LearningCurve, SampleEfficiency, provenance
from wattune.sample_efficiency.choice import LogTimes
from wattune.sample_efficiency.pooled import observation_of, pooled_curve
from wattune.sample_efficiency.relative_samples import never_reached
from wattune.sample_efficiency.scheduler import MAX_RUNS, RunScheduler
from wattune.workloads import Workload

TOGETHER = 2
"""Runs to train at a time, if there are cores: each further one is chosen with less information."""


def estimate_pooled(
    proxy: Workload,
    *,
    name: str,
    log_step_times: LogTimes | None = None,
    folder: Path | None = None,
    algorithm: str = "backprop",
    processes: int | None = None,
    executor: str | None = None,
    progress: Progress | None = None,
) -> SampleEfficiency:
    """Train the proxy at a few batch sizes, one or a few seeds each, until another run would not change the choice.

    ``log_step_times``: see ``RunScheduler``; batch sizes that cannot be best are not trained. With several processes,
    and on a cluster, runs are trained two at a time.

    Raises: WorkloadError if no run reached the target; what ``sweep`` raises.
    """
    scheduler = RunScheduler(proxy.batch_sizes, log_step_times=log_step_times)
    processes = min(TOGETHER, processes or (cores() if executor is None else TOGETHER))
    how: dict[str, Any] = {"processes": processes, "executor": executor, "progress": progress}
    runs: list[LearningCurve] = []
    with trainer(proxy, folder=folder, algorithm=algorithm, most=MAX_RUNS, **how) as train:
        while requests := next_runs(scheduler, runs, together=processes):
            runs += train(requests)
    return pooled_result(proxy, scheduler, runs, name=name, log_step_times=log_step_times, algorithm=algorithm)


def pooled_result(
    proxy: Workload,
    scheduler: RunScheduler,
    runs: Sequence[LearningCurve],
    *,
    name: str,
    log_step_times: LogTimes | None = None,
    algorithm: str = "backprop",
) -> SampleEfficiency:
    """Make the record of these runs of the proxy, once ``scheduler`` requests no more of them.

    Raises: WorkloadError if no run reached the target.
    """
    if runs and not any(run.reached for run in runs):
        raise never_reached(runs)
    origin = provenance("measured", model=proxy.model_fingerprint(), data=proxy.data_fingerprint())
    return pooled_curve(
        scheduler.posterior,
        [observation_of(run) for run in runs],
        log_step_times=log_step_times,
        workload=name,
        algorithm=algorithm,
        target=proxy.target,
        stopped_because=scheduler.reason,
        provenance=origin,
    )


def next_runs(scheduler: RunScheduler, runs: Sequence[LearningCurve], *, together: int = TOGETHER) -> list[RunRequest]:
    """The runs to train next, at most ``together``; deterministic in ``runs``, so that a rerun repeats them."""
    observations = [observation_of(run) for run in runs]
    seeds = Counter(run.batch_size for run in runs)
    requests: list[RunRequest] = []
    while len(requests) < together:
        size = scheduler.next(observations, pending=[request.batch_size for request in requests])
        if size is None:
            break
        budget = scheduler.budget(size) if runs else None
        requests.append(RunRequest(size, seeds[size], None if budget is None else math.ceil(budget)))
        seeds[size] += 1
    return requests
