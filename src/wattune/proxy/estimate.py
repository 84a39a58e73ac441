"""The estimate of samples to target per batch size, from training the workload's proxy.

The pooled strategy makes one run after the other: the scheduler chooses each from the results so far.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from wattune.errors import InputError, UnknownName
from wattune.program.workload import ProgramWorkload
from wattune.proxy.plateau import find_plateau, read_levels
from wattune.proxy.sweep import Progress, RunRequest, cores, kind_of_run, sweep, trainer
from wattune.records import LearningCurve, SampleEfficiency, provenance
from wattune.records.efficiency import EfficiencyStrategy
from wattune.sample_efficiency.choice import LogTimes, observation_of, pooled_curve, with_runs
from wattune.sample_efficiency.posterior import fit
from wattune.sample_efficiency.relative_samples import curve, never_reached
from wattune.sample_efficiency.scheduler import MAX_RUNS, MIN_SIZES, SEEDS, USUAL_RUNS, RunScheduler

if TYPE_CHECKING:
    from wattune.proxy.sweep import AnyWorkload

STRATEGIES = ("full", "pooled")
"""Names of the strategies: every batch size and seed, or as few runs as a pooled curve needs."""


def estimate(
    workload: AnyWorkload,
    *,
    strategy: EfficiencyStrategy | None = None,
    seeds: int | None = None,
    most: int | None = None,
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

    ``most``, for pooled: the largest number of runs (12), 2 or more. The workload's own ``batch_size`` is always one of
    three runs or more, and is kept unless another one is surely faster, which two runs cannot tell. A proxy whose
    target is a share of the way to its plateau is trained to there first: see ``plateau``. What the runs will cost and
    warnings about the proxy go to ``progress``. See ``sweep`` for processes, executor, folder and resuming.

    Raises: WorkloadError without a proxy or with one of another task type; TargetNotReached if no run reached the
    proxy's target; InputError; UnknownName; RecordError; OutputError; Interrupted.
    """
    strategy = resolve_strategy(strategy, seeds, log_step_times, most)
    _, algorithm = kind_of_run(workload, algorithm)
    most, seeds = most or MAX_RUNS, seeds or SEEDS
    warnings = workload.check_proxy()
    proxy = workload.proxy
    assert proxy is not None  # ensured by check_proxy
    plateau = None
    with ExitStack() as stack:
        if not isinstance(proxy, ProgramWorkload) and proxy.target_share is not None:
            folder = folder or Path(stack.enter_context(TemporaryDirectory(prefix="wattune-")))
            plateau = find_plateau(proxy, folder, algorithm=algorithm, executor=executor, progress=progress)
            proxy = plateau.proxy
            workload = replace(cast(Any, workload), proxy=proxy)
        if progress is not None:
            count = most if strategy == "pooled" else len(workload.batch_sizes) * seeds
            usual = min(most, USUAL_RUNS[workload.is_proxy_whole]) if strategy == "pooled" else count
            for warning in warnings:
                progress(0, count, f"warning: {warning}")
            progress(0, count, run_cost(usual, count, proxy.budget_samples / workload.budget_samples))
        how: dict[str, Any] = {"folder": folder, "algorithm": algorithm, "executor": executor, "progress": progress}
        if strategy == "pooled":
            record = _pooled(workload, proxy, most, log_step_times, processes, how)
        else:
            runs = sweep(proxy, batch_sizes=workload.batch_sizes, seeds=range(seeds), processes=processes, **how)
            record = _full(workload, runs)
        return record if plateau is None or folder is None else read_levels(record, plateau, folder, progress)


def _full(workload: AnyWorkload, runs: Sequence[LearningCurve]) -> SampleEfficiency:
    """Make the record of runs at every batch size. Raises: RecordError, TargetNotReached; see ``curve``."""
    whole, ratio = workload.is_proxy_whole, workload.parameter_ratio
    observations = [observation_of(run) for run in runs]
    reached = any(run.reached for run in runs)  # if none did, there is no curve
    left_out = fit(observations, sorted({run.batch_size for run in runs}), whole=whole).left_out if reached else ()
    averaged = [run for run, seen in zip(runs, observations, strict=True) if seen not in left_out]
    found = curve(averaged, workload=workload.name)
    return with_runs(found, observations, own=workload.batch_size, whole=whole, ratio=ratio)


def resolve_strategy(
    strategy: EfficiencyStrategy | None,
    seeds: int | None = None,
    log_step_times: LogTimes | None = None,
    most: int | None = None,
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
    if most is not None and (strategy == "full" or not 2 <= most <= MAX_RUNS):
        allowed = f"2 to {MAX_RUNS}" if strategy == "pooled" else "none with the full strategy, which makes all of them"
        raise InputError("runs", value=most, allowed=allowed)
    return strategy


SAVING = 0.1
"""Share of a training run's time that a choice is assumed to save while no run has shown it."""


def run_cost(usual: int, most: int, length: float) -> str:
    """Say what the runs will cost, and when that pays. ``length``: of one, in training runs of the target."""
    runs = f"about {usual} proxy runs ({most} at most)" if usual < most else f"{most} proxy runs"
    cost = usual * length
    after = f"{max(1.0, cost / SAVING):.0f}"
    text = (
        f"{runs}, by their budgets as long as {cost:.2g} training runs: paid back after {after} if the choice saves "
        f"{SAVING:.0%} of each"
    )
    if cost < 1:
        return text
    return f"{text}, or by a run {after} times as long; for one as short as this, use wattune.capped or wattune guard"


TOGETHER = 2
"""Runs to train at a time, if there are cores: each further one is chosen with less information."""


def _pooled(
    workload: AnyWorkload,
    proxy: AnyWorkload,
    most: int,
    log_step_times: LogTimes | None,
    processes: int | None,
    how: dict[str, Any],
) -> SampleEfficiency:
    """Train the proxy at a few batch sizes, one run after the other, until another run would not change the choice.

    With several processes, and on a cluster, runs are trained two at a time.

    Raises: TargetNotReached if no run reached the target; what ``sweep`` raises.
    """
    own = workload.batch_size if most >= MIN_SIZES else None
    whole, ratio = workload.is_proxy_whole, workload.parameter_ratio
    scheduler = RunScheduler(
        proxy.batch_sizes, log_step_times=log_step_times, own=own, whole=whole, ratio=ratio, most=most
    )
    if how["executor"] is None:
        processes = processes or (1 if isinstance(proxy, ProgramWorkload) else cores())
    processes = min(TOGETHER, processes or TOGETHER)
    runs: list[LearningCurve] = []
    with trainer(proxy, most=most, processes=processes, **how) as train:
        while requests := _next_runs(scheduler, runs, processes):
            runs += train(requests)
    if runs and not any(run.reached for run in runs):
        raise never_reached(runs)
    return pooled_curve(
        scheduler.posterior,
        [observation_of(run) for run in runs],
        log_step_times=log_step_times,
        own=own,
        workload=workload.name,
        algorithm=how["algorithm"],
        target=proxy.target,
        stopped_because=scheduler.reason,
        provenance=provenance("measured", model=proxy.model_fingerprint(), data=proxy.data_fingerprint()),
    )


def _next_runs(scheduler: RunScheduler, runs: Sequence[LearningCurve], together: int) -> list[RunRequest]:
    """The runs to train next, at ``together`` batch sizes or fewer; deterministic in ``runs``: a rerun repeats them."""
    observations = [observation_of(run) for run in runs]
    seeds = Counter(run.batch_size for run in runs)
    requests: list[RunRequest] = []
    for _ in range(together):
        size = scheduler.next(observations, pending=[request.batch_size for request in requests])
        if size is None:
            break
        budget = scheduler.budget(size) if runs else None
        requests.append(RunRequest(size, seeds[size], None if budget is None else math.ceil(budget)))
        seeds[size] += 1
    return requests
