"""The estimate of samples to target per batch size, from training the workload's proxy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wattune.algorithms import canonical
from wattune.errors import InputError, UnknownName
from wattune.proxy.sequential import estimate_pooled
from wattune.proxy.sweep import Progress, sweep
from wattune.records import LearningCurve, SampleEfficiency
from wattune.records.efficiency import EfficiencyStrategy
from wattune.sample_efficiency.choice import LogTimes
from wattune.sample_efficiency.pooled import observation_of, with_critical_batch_size
from wattune.sample_efficiency.relative_samples import curve
from wattune.sample_efficiency.scheduler import MAX_RUNS, SEEDS
from wattune.workloads import Workload

STRATEGIES = ("full", "pooled")
"""Names of the strategies: every batch size and seed, or as few runs as a pooled curve needs."""


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
) -> SampleEfficiency:
    """Train the proxy at the workload's batch sizes, and relate their samples to target.

    ``strategy`` "full": train every batch size with ``seeds`` seeds (3) and take the means; "pooled": train as few runs
    as suffice and fit one curve to all of them. None: full if ``seeds`` is given, else pooled. ``log_step_times``, for
    pooled: batch size -> mean and standard deviation of ln(seconds per sample) on the device at the fastest setting
    that the cap allows; batch sizes that are missing or cannot be best are not trained.

    Warnings about the proxy go to ``progress``. See ``sweep`` for processes, executor, folder and resuming.

    Raises: WorkloadError without a proxy, with one of another task type, or if no run reached the proxy's target;
    InputError; UnknownName; RecordError; OutputError; Interrupted.
    """
    strategy, algorithm = resolve_strategy(strategy, seeds, log_step_times), canonical(algorithm)
    seeds = seeds or SEEDS
    warnings = workload.check_proxy()
    proxy = workload.proxy
    assert proxy is not None  # ensured by check_proxy
    for warning in warnings:
        if progress is not None:
            most = MAX_RUNS if strategy == "pooled" else len(workload.batch_sizes) * seeds
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


def full_result(runs: Sequence[LearningCurve], *, name: str) -> SampleEfficiency:
    """Make the record of runs at every batch size. Raises: RecordError, WorkloadError; see ``curve``."""
    return with_critical_batch_size(curve(runs, workload=name), [observation_of(run) for run in runs])


def resolve_strategy(
    strategy: EfficiencyStrategy | None, seeds: int | None = None, log_step_times: LogTimes | None = None
) -> EfficiencyStrategy:
    """Resolve None to a strategy. Raises: UnknownName; InputError if it conflicts with the other arguments."""
    if strategy is None:
        strategy = "pooled" if seeds is None else "full"
    if strategy not in STRATEGIES:
        raise UnknownName("strategy", strategy, STRATEGIES)
    if seeds is not None and (seeds < 1 or strategy == "pooled"):
        allowed = "1 or more" if strategy == "full" else "none with the pooled strategy, which chooses its own runs"
        raise InputError("seeds", value=seeds, allowed=allowed)
    if strategy == "full" and log_step_times is not None:
        raise InputError("step times with the full strategy", allowed="the pooled strategy")
    return strategy
