"""Proxy runs one after the other: each is chosen by what the ones before left open, and no more than are needed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattune.decisions.allocation import MOST, Allocation
from wattune.decisions.choice import LogTimes
from wattune.efficiency.beginning import observed, with_first_tenth
from wattune.efficiency.pooled import pooled_curve
from wattune.efficiency.relation import never_reached
from wattune.efficiency.sweeping import Progress, Wanted, cores, trainer
from wattune.records import EfficiencyCurve, LearningCurve, provenance
from wattune.workloads import Workload

TOGETHER = 2
"""Runs that are trained at a time, where there is room: each further one is chosen knowing less."""


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
) -> EfficiencyCurve:
    """Train the proxy at few batch sizes, one or a few seeds each, until a further run would not change the choice.

    ``log_step_times``: see ``wattune.decisions.allocation``; batch sizes that they leave no chance are not trained.
    With several processes, and on a cluster, runs are trained two at a time.

    Raises: WorkloadError where no run reached the target; what ``sweep`` raises.
    """
    allocation = Allocation(proxy.batch_sizes, log_step_times=log_step_times)
    processes = min(TOGETHER, processes or (cores() if executor is None else TOGETHER))
    how: dict[str, Any] = {"processes": processes, "executor": executor, "progress": progress}
    runs: list[LearningCurve] = []
    with trainer(proxy, folder=folder, algorithm=algorithm, most=MOST, **how) as train:
        while wanted := next_runs(allocation, runs, together=processes):
            runs += train(wanted)
    return pooled_result(proxy, allocation, runs, name=name, log_step_times=log_step_times, algorithm=algorithm)


def pooled_result(
    proxy: Workload,
    allocation: Allocation,
    runs: Sequence[LearningCurve],
    *,
    name: str,
    log_step_times: LogTimes | None = None,
    algorithm: str = "backprop",
) -> EfficiencyCurve:
    """The record of these runs of the proxy, after ``allocation`` has asked for no more of them.

    Raises: WorkloadError where no run reached the target.
    """
    if runs and not any(run.reached for run in runs):
        raise never_reached(runs)
    origin = provenance("measured", model=proxy.model_fingerprint(), data=proxy.data_fingerprint())
    found = pooled_curve(
        allocation.posterior,
        [observed(run) for run in runs],
        log_step_times=log_step_times,
        workload=name,
        algorithm=algorithm,
        target=proxy.target,
        stopped_because=allocation.reason,
        provenance=origin,
    )
    return with_first_tenth(found, runs)


def next_runs(allocation: Allocation, runs: Sequence[LearningCurve], *, together: int = TOGETHER) -> list[Wanted]:
    """The runs to make next, so many at a time; the same for the same runs, so that a rerun goes the same way."""
    known = [observed(run) for run in runs]
    seeds = Counter(run.batch_size for run in runs)
    wanted: list[Wanted] = []
    while len(wanted) < together:
        size = allocation.next(known, pending=[one.batch_size for one in wanted])
        if size is None:
            break
        budget = allocation.budget(size) if runs else None
        wanted.append(Wanted(size, seeds[size], None if budget is None else math.ceil(budget)))
        seeds[size] += 1
    return wanted
