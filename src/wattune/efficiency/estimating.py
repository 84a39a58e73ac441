"""The samples that each batch size needs, estimated on the workload's proxy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wattune.algorithms import canonical
from wattune.decisions.allocation import MOST, SEEDS
from wattune.decisions.choice import LogTimes
from wattune.efficiency.beginning import observed, with_critical, with_first_tenth
from wattune.efficiency.relation import curve
from wattune.efficiency.sequential import estimate_pooled
from wattune.efficiency.sweeping import Progress, sweep
from wattune.errors import InputError, UnknownName
from wattune.records import EfficiencyCurve, LearningCurve
from wattune.records.efficiency import EfficiencyStrategy
from wattune.workloads import Workload

STRATEGIES = ("full", "pooled")
"""How the samples can be estimated."""


def estimate(
    workload: Workload,
    *,
    strategy: EfficiencyStrategy | None = None,
    seeds: int | None = None,
    log_step_times: LogTimes | None = None,
    folder: Path | None = None,
    algorithm: str = "backprop",
    processes: int | None = None,
    executor: str | None = None,
    progress: Progress | None = None,
) -> EfficiencyCurve:
    """Train the proxy at the workload's batch sizes, and relate what they needed.

    ``strategy`` "full": each of them with ``seeds`` seeds (3), and the means count; "pooled": a few of them, as many as
    it takes, and a curve through all runs counts. None: full where ``seeds`` is given. ``log_step_times``: for pooled,
    batch size -> mean and standard deviation of ln(seconds per sample) on the device at the fastest setting that the
    cap allows; batch sizes that are not there, or have no chance to be the best one, are not trained.

    Warnings about the proxy come through ``progress``. See ``sweep`` for processes, executor, folder and resuming.

    Raises: WorkloadError without a proxy, with one of another task type, or where no run reached the proxy's
    target; InputError; UnknownName; RecordError; OutputError; Interrupted.
    """
    strategy, algorithm = strategy_of(strategy, seeds, log_step_times), canonical(algorithm)
    seeds = seeds or SEEDS
    warnings = workload.check_proxy()
    proxy = workload.proxy
    assert proxy is not None  # held by check_proxy
    for warning in warnings:
        if progress is not None:
            most = MOST if strategy == "pooled" else len(workload.batch_sizes) * seeds
            progress(0, most, f"warning: {warning}")
    if strategy == "pooled":
        return estimate_pooled(
            proxy,
            name=workload.name,
            log_step_times=log_step_times,
            folder=folder,
            algorithm=algorithm,
            processes=processes,
            executor=executor,
            progress=progress,
        )
    runs = sweep(
        proxy,
        batch_sizes=workload.batch_sizes,
        seeds=range(seeds),
        folder=folder,
        algorithm=algorithm,
        processes=processes,
        executor=executor,
        progress=progress,
    )
    return full_result(runs, name=workload.name)


def full_result(runs: Sequence[LearningCurve], *, name: str) -> EfficiencyCurve:
    """The record of runs at every batch size. Raises: RecordError, WorkloadError; see ``curve``."""
    return with_first_tenth(with_critical(curve(runs, workload=name), [observed(run) for run in runs]), runs)


def strategy_of(
    strategy: EfficiencyStrategy | None, seeds: int | None = None, log_step_times: LogTimes | None = None
) -> EfficiencyStrategy:
    """The strategy that is meant. Raises: UnknownName; InputError where it does not go with the rest."""
    if strategy is None:
        strategy = "pooled" if seeds is None else "full"
    if strategy not in STRATEGIES:
        raise UnknownName("strategy", strategy, STRATEGIES)
    if seeds is not None and (seeds < 1 or strategy == "pooled"):
        allowed = "1 or more" if strategy == "full" else "none with the pooled strategy, which chooses its runs itself"
        raise InputError("seeds", value=seeds, allowed=allowed)
    if strategy == "full" and log_step_times is not None:
        raise InputError("step times with the full strategy", allowed="the pooled strategy")
    return strategy
