"""A sweep of training runs over batch sizes and seeds, in worker processes; finished runs are never repeated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from wattune.errors import InputError, Interrupted
from wattune.files import check_writable
from wattune.program.workload import ProgramWorkload
from wattune.proxy.executor import cluster_address
from wattune.proxy.program_run import ProgramRun, check_curves, check_first_metrics, in_order
from wattune.proxy.ray_cluster import cluster_training
from wattune.proxy.training_run import TrainingRun, TrainRuns
from wattune.records import LearningCurve

if TYPE_CHECKING:
    from wattune.workloads import Workload

    AnyWorkload: TypeAlias = Workload | ProgramWorkload

Progress = Callable[[int, int, str], None]


def sweep(
    workload: AnyWorkload,
    *,
    batch_sizes: Sequence[int] | None = None,
    seeds: Sequence[int],
    folder: Path | None,
    algorithm: str = "backprop",
    processes: int | None = None,
    executor: str | None = None,
    progress: Progress | None = None,
) -> list[LearningCurve]:
    """Train at every batch size and seed until the target or the end of the budget; a seed fixes the initial weights.

    Each run has one torch thread in a worker process, the longest (smallest batch sizes) first; ``processes`` defaults
    to the number of cores, at most that of runs. A workload that cannot be pickled, or is defined in a notebook, is
    trained in this process. Finished curves are saved in ``folder`` as ``b008-s0.json`` and reused by a rerun; an
    unfinished run resumes from its checkpoint, at most ``CHECKPOINT_EVERY`` evaluations back. ``executor`` "ray" or
    "ray:ADDRESS": on a cluster, one run per core, without checkpoints; "cuda": on the GPU of this machine, as many
    processes at a time. A program is run once at a time, on all cores.

    Returns the curves by batch size and seed.

    Raises: RecordError if the folder holds curves of another sweep; OutputError; Interrupted on Ctrl-C; InputError;
    what the workload raises.
    """
    sizes = sorted(set(workload.batch_sizes if batch_sizes is None else batch_sizes))
    if not sizes or not seeds:
        raise InputError("nothing to train", value=f"{len(sizes)} batch sizes, {len(seeds)} seeds", allowed="1 or more")
    how: dict[str, Any] = {"processes": processes, "executor": executor, "progress": progress}
    with trainer(workload, folder=folder, algorithm=algorithm, **how) as train:
        # Small batches take the most steps, so they start first and the last process ends soonest.
        return train([RunRequest(b, s) for b in sizes for s in dict.fromkeys(seeds)])


CUDA = "cuda"
"""Executor that trains on the GPU of this machine."""


class RunRequest(NamedTuple):
    """A request for a run; ``budget_samples``: a smaller budget than the workload's."""

    batch_size: int
    seed: int
    budget_samples: int | None = None


@contextmanager
def trainer(
    workload: AnyWorkload,
    *,
    folder: Path | None,
    algorithm: str = "backprop",
    processes: int | None = None,
    executor: str | None = None,
    progress: Progress | None = None,
    most: int | None = None,
) -> Iterator[Callable[[Sequence[RunRequest]], list[LearningCurve]]]:
    """Open a function that trains the requested runs and returns their curves in the same order; see ``sweep``.

    ``most``: the number of runs that all calls together may request, if it is not known beforehand; progress then
    counts to it.
    """
    if processes is not None and processes < 1:
        raise InputError("processes", value=processes, allowed="1 or more")
    on_cluster = executor if executor != CUDA else None
    if on_cluster is not None:
        cluster_address(on_cluster, f"{CUDA}, ray or ray:ADDRESS")
    if isinstance(workload, ProgramWorkload) and executor is None and processes not in (None, 1):
        raise InputError("processes", value=processes, allowed="1: a program has all cores")
    kind, algorithm = kind_of_run(workload, algorithm)
    on: dict[str, Any] = {}
    if executor == CUDA:
        if isinstance(workload, ProgramWorkload):
            raise InputError("executor", value=executor, allowed="none: a program chooses its processor itself")
        _check_gpu()
        on = {"on": "gpu"}
    if folder is not None:
        folder = folder.absolute()  # code of a user may change the current one
        check_writable(folder)
    fingerprint = workload.fingerprint()
    report = progress or (lambda curves, total, what: None)
    curves: dict[TrainingRun, LearningCurve] = {}
    with ExitStack() as stack:
        train: TrainRuns | None = None

        def get(requests: Sequence[RunRequest]) -> list[LearningCurve]:
            nonlocal train
            runs = [
                kind(fingerprint, request.batch_size, request.seed, algorithm, folder, request.budget_samples, **on)
                for request in requests
            ]
            finished = {run: curve for run in runs if (curve := run.finished(workload)) is not None}
            curves.update(finished)
            total = most or len(runs)
            if finished:
                report(len(curves), total, f"{len(finished)} of {_runs(len(runs))} already finished")
            remaining = [run for run in runs if run not in curves]
            if remaining and train is None:
                workload.check()
                if on_cluster is not None:
                    report(len(curves), total, f"{_runs(len(remaining))} to train on the cluster")
                    train = stack.enter_context(cluster_training(workload, on_cluster))
                elif isinstance(workload, ProgramWorkload):
                    train = partial(in_order, workload)
                else:
                    from wattune.proxy.workers import obstacle, worker_pool

                    count = min(processes or cores(), most or len(remaining))
                    if count > 1 and (why := obstacle(workload)) is not None:
                        report(len(curves), total, f"{why}: training in this process")
                        count = 1
                    report(len(curves), total, f"{_runs(len(remaining))} to train, {count} at a time")
                    train = stack.enter_context(worker_pool(workload, count))
            if remaining and train is not None:
                try:
                    with closing(train(remaining)) as results:
                        for run, result in results:
                            curves[run] = result
                            if isinstance(workload, ProgramWorkload):
                                check_curves(workload, list(curves.values()))
                            report(len(curves), total, _line(result))
                except KeyboardInterrupt as error:
                    raise Interrupted(f"interrupted after {len(curves)} of {_runs(total)}") from error
            if isinstance(workload, ProgramWorkload):
                check_first_metrics(workload, list(curves.values()))
            return [curves[run] for run in runs]

        yield get


def kind_of_run(workload: AnyWorkload, algorithm: str) -> tuple[type[Any], str]:
    """The class of a workload's runs, and the full name of the algorithm. Raises: InputError, UnknownName."""
    if isinstance(workload, ProgramWorkload):
        if algorithm != "backprop":
            raise InputError("algorithm", value=algorithm, allowed="none: a program has its own")
        return ProgramRun, algorithm
    # Imported here, since they need torch.
    from wattune.algorithms import canonical
    from wattune.proxy.run import ProxyRun

    return ProxyRun, canonical(algorithm)


def _check_gpu() -> None:
    """Check that torch can use a GPU of this machine. Raises: InputError."""
    import torch

    if not torch.cuda.is_available():
        allowed = "a machine with a GPU that torch can use"
        raise InputError("the executor", value=CUDA, allowed=allowed, hint="leave it out")


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _line(curve: LearningCurve) -> str:
    if curve.target is None:
        return f"batch size {curve.batch_size}, seed {curve.seed}: {curve.samples:,} samples"
    how = "reached the target after" if curve.reached else "did not reach the target in"
    return f"batch size {curve.batch_size}, seed {curve.seed}: {how} {curve.samples:,} samples"
