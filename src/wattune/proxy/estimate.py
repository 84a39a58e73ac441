"""The estimate of samples to target per batch size, from training the workload's proxy.

The pooled strategy makes one run after the other: the scheduler chooses each from the results so far.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattune.errors import InputError, UnknownName
from wattune.program.workload import ProgramWorkload
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
    three runs or more, and is kept unless another one is surely faster, which two runs cannot tell. What the runs will
    cost and warnings about the proxy go to ``progress``. See ``sweep`` for processes, executor, folder and resuming.

    Raises: WorkloadError without a proxy or with one of another task type; TargetNotReached if no run reached the
    proxy's target; InputError; UnknownName; RecordError; OutputError; Interrupted.
    """
    strategy = resolve_strategy(strategy, seeds, log_step_times, most)
    _, algorithm = kind_of_run(workload, algorithm)
    most = most or MAX_RUNS
    seeds = seeds or SEEDS
    warnings = workload.check_proxy()
    proxy = workload.proxy
    assert proxy is not None  # ensured by check_proxy
    whole, ratio = workload.is_proxy_whole, workload.parameter_ratio
    if progress is not None:
        count = most if strategy == "pooled" else len(workload.batch_sizes) * seeds
        usual = min(most, USUAL_RUNS[whole]) if strategy == "pooled" else count
        for warning in warnings:
            progress(0, count, f"warning: {warning}")
        progress(0, count, run_cost(usual, count, proxy.budget_samples / workload.budget_samples))
    if strategy == "pooled":
        return estimate_pooled(
            proxy,
            name=workload.name,
            most=most,
            log_step_times=log_step_times,
            own=workload.batch_size if most >= MIN_SIZES else None,
            whole=whole,
            ratio=ratio,
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
    return full_result(runs, name=workload.name, own=workload.batch_size, whole=whole, ratio=ratio)


def full_result(
    runs: Sequence[LearningCurve], *, name: str, own: int | None = None, whole: bool = False, ratio: float = 1.0
) -> SampleEfficiency:
    """Make the record of runs at every batch size; ``own``, ``whole``, ``ratio``: see ``RunScheduler``.

    Raises: RecordError, TargetNotReached; see ``curve``."""
    observations = [observation_of(run) for run in runs]
    reached = any(run.reached for run in runs)  # if none did, there is no curve
    left_out = fit(observations, sorted({run.batch_size for run in runs}), whole=whole).left_out if reached else ()
    averaged = [run for run, seen in zip(runs, observations, strict=True) if seen not in left_out]
    return with_runs(curve(averaged, workload=name), observations, own=own, whole=whole, ratio=ratio)


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
    text = (
        f"{runs}, by their budgets as long as {cost:.2g} training runs: paid back after {max(1.0, cost / SAVING):.0f} "
        f"if the choice saves {SAVING:.0%} of each"
    )
    return text if cost < 1 else f"{text}; a single run cannot pay for them, use wattune.capped"


TOGETHER = 2
"""Runs to train at a time, if there are cores: each further one is chosen with less information."""


def estimate_pooled(
    proxy: AnyWorkload,
    *,
    name: str,
    most: int = MAX_RUNS,
    log_step_times: LogTimes | None = None,
    own: int | None = None,
    whole: bool = False,
    ratio: float = 1.0,
    folder: Path | None = None,
    algorithm: str = "backprop",
    processes: int | None = None,
    executor: str | None = None,
    progress: Progress | None = None,
) -> SampleEfficiency:
    """Train the proxy at a few batch sizes, one run after the other, until another run would not change the choice.

    ``most``, ``log_step_times``, ``own``, ``whole`` and ``ratio``: see ``RunScheduler``. With several processes, and on
    a cluster, runs are trained two at a time.

    Raises: TargetNotReached if no run reached the target; what ``sweep`` raises.
    """
    scheduler = RunScheduler(
        proxy.batch_sizes, log_step_times=log_step_times, own=own, whole=whole, ratio=ratio, most=most
    )
    if executor is None:
        processes = processes or (1 if isinstance(proxy, ProgramWorkload) else cores())
    processes = min(TOGETHER, processes or TOGETHER)
    how: dict[str, Any] = {"processes": processes, "executor": executor, "progress": progress}
    runs: list[LearningCurve] = []
    with trainer(proxy, folder=folder, algorithm=algorithm, most=most, **how) as train:
        while requests := next_runs(scheduler, runs, together=processes):
            runs += train(requests)
    return pooled_result(proxy, scheduler, runs, name=name, log_step_times=log_step_times, own=own, algorithm=algorithm)


def pooled_result(
    proxy: AnyWorkload,
    scheduler: RunScheduler,
    runs: Sequence[LearningCurve],
    *,
    name: str,
    log_step_times: LogTimes | None = None,
    own: int | None = None,
    algorithm: str = "backprop",
) -> SampleEfficiency:
    """Make the record of these runs of the proxy, once ``scheduler`` requests no more of them.

    Raises: TargetNotReached if no run reached the target.
    """
    if runs and not any(run.reached for run in runs):
        raise never_reached(runs)
    origin = provenance("measured", model=proxy.model_fingerprint(), data=proxy.data_fingerprint())
    return pooled_curve(
        scheduler.posterior,
        [observation_of(run) for run in runs],
        log_step_times=log_step_times,
        own=own,
        workload=name,
        algorithm=algorithm,
        target=proxy.target,
        stopped_because=scheduler.reason,
        provenance=origin,
    )


def next_runs(scheduler: RunScheduler, runs: Sequence[LearningCurve], *, together: int = TOGETHER) -> list[RunRequest]:
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
