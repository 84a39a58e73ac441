"""Training at every batch size and seed, over processes; what is finished is never done again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from wattune.algorithms import canonical
from wattune.efficiency.cluster import cluster_training
from wattune.efficiency.runs import Run
from wattune.efficiency.workers import Results, can_travel, training
from wattune.errors import InputError, Interrupted, OutputError
from wattune.executor import cluster_address
from wattune.records import LearningCurve
from wattune.workloads import Workload

Progress = Callable[[int, int, str], None]


def sweep(
    workload: Workload,
    *,
    batch_sizes: Sequence[int] | None = None,
    seeds: Sequence[int],
    folder: Path | None,
    algorithm: str = "backprop",
    processes: int | None = None,
    executor: str | None = None,
    progress: Progress | None = None,
) -> list[LearningCurve]:
    """Train from the same initial weights for every batch size and seed until the target or the end of the budget.

    Each run is one torch thread in a process of its own, the longest (smallest batch sizes) first; ``processes`` is
    at most the number of cores and of runs unless given. A workload that cannot be sent to another process is
    trained in this one. Finished curves are kept in ``folder`` as ``b008-s0.json``, and a rerun takes them from
    there; an unfinished run goes on from its checkpoint, at most ``CHECKPOINT_EVERY`` evaluations back.
    ``executor`` "ray" or "ray:ADDRESS": on a cluster, as many at a time as it has cores, without checkpoints.

    Returns the curves by batch size and seed.

    Raises: RecordError where the folder holds curves of another training; OutputError; Interrupted on Ctrl-C;
    InputError; what the workload raises.
    """
    sizes = sorted(set(workload.batch_sizes if batch_sizes is None else batch_sizes))
    if not sizes or not seeds:
        raise InputError("nothing to train", value=f"{len(sizes)} batch sizes, {len(seeds)} seeds", allowed="1 or more")
    how: dict[str, Any] = {"processes": processes, "executor": executor, "progress": progress}
    with trainer(workload, folder=folder, algorithm=algorithm, **how) as train:
        # Small batches take the most steps, so they start first and the last process ends soonest.
        return train([Wanted(b, s) for b in sizes for s in dict.fromkeys(seeds)])


class Wanted(NamedTuple):
    """A run that is wanted; ``budget_samples``: it may end earlier than the workload says."""

    batch_size: int
    seed: int
    budget_samples: int | None = None


@contextmanager
def trainer(
    workload: Workload,
    *,
    folder: Path | None,
    algorithm: str = "backprop",
    processes: int | None = None,
    executor: str | None = None,
    progress: Progress | None = None,
    most: int | None = None,
) -> Iterator[Callable[[Sequence[Wanted]], list[LearningCurve]]]:
    """Gives a function that returns the curves of the runs that it is asked for, in their order; see ``sweep``.

    ``most``: how many runs all calls together may ask for, where that is not known before; progress then counts to it.
    """
    if processes is not None and processes < 1:
        raise InputError("processes", value=processes, allowed="1 or more")
    if executor is not None:
        cluster_address(executor)
    algorithm = canonical(algorithm)
    if folder is not None:
        _make(folder)
    fingerprint = workload.fingerprint()
    tell = progress or (lambda done, total, what: None)
    done: dict[Run, LearningCurve] = {}
    with ExitStack() as stack:
        train: Callable[[Sequence[Run]], Results] | None = None

        def get(wanted: Sequence[Wanted]) -> list[LearningCurve]:
            nonlocal train
            runs = [Run(fingerprint, one.batch_size, one.seed, algorithm, folder, one.budget_samples) for one in wanted]
            kept = {run: curve for run in runs if (curve := run.finished(workload)) is not None}
            done.update(kept)
            total = most or len(runs)
            if kept:
                tell(len(done), total, f"{len(kept)} of {len(runs)} runs kept from before")
            left = [run for run in runs if run not in done]
            if left and train is None and executor is not None:
                workload.check()
                tell(len(done), total, f"{len(left)} runs to train on the cluster")
                train = stack.enter_context(cluster_training(workload, executor))
            elif left and train is None:
                workload.check()
                count = min(processes or cores(), most or len(left))
                if count > 1 and not can_travel(workload):
                    tell(len(done), total, "this workload cannot be sent to other processes: training in this one")
                    count = 1
                tell(len(done), total, f"{len(left)} runs to train, {count} at a time")
                train = stack.enter_context(training(workload, count))
            if left and train is not None:
                try:
                    with closing(train(left)) as results:
                        for run, result in results:
                            done[run] = result
                            tell(len(done), total, _line(result))
                except KeyboardInterrupt as error:
                    raise Interrupted(f"interrupted after {len(done)} of {total} runs") from error
            return [done[run] for run in runs]

        yield get


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot write {folder}", value=error.strerror or str(error), hint="give another output folder"
        ) from error


def cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _line(curve: LearningCurve) -> str:
    if curve.target is None:
        return f"batch size {curve.batch_size}, seed {curve.seed}: {curve.samples:,} samples"
    how = "reached the target after" if curve.reached else "did not reach the target in"
    return f"batch size {curve.batch_size}, seed {curve.seed}: {how} {curve.samples:,} samples"
