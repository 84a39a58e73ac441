"""Training at every batch size and seed, over processes; what is finished is never done again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from wattune.algorithms import ALGORITHMS
from wattune.efficiency.runs import Run
from wattune.efficiency.workers import can_travel, train_here, train_in_processes
from wattune.errors import InputError, Interrupted, OutputError, UnknownName
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
    progress: Progress | None = None,
) -> list[LearningCurve]:
    """Train from the same initial weights for every batch size and seed until the target or the end of the budget.

    Each run is one torch thread in a process of its own, the longest (smallest batch sizes) first; ``processes`` is
    at most the number of cores and of runs unless given. A workload that cannot be sent to another process is
    trained in this one. Finished curves are kept in ``folder`` as ``b008-s0.json``, and a rerun takes them from
    there; an unfinished run goes on from its checkpoint, at most ``CHECKPOINT_EVERY`` evaluations back.

    Returns the curves by batch size and seed.

    Raises: RecordError where the folder holds curves of another training; OutputError; Interrupted on Ctrl-C;
    InputError; what the workload raises.
    """
    sizes = sorted(set(workload.batch_sizes if batch_sizes is None else batch_sizes))
    if not sizes or not seeds:
        raise InputError("nothing to train", value=f"{len(sizes)} batch sizes, {len(seeds)} seeds", allowed="1 or more")
    if processes is not None and processes < 1:
        raise InputError("processes", value=processes, allowed="1 or more")
    if algorithm not in ALGORITHMS:
        raise UnknownName("algorithm", algorithm, ALGORITHMS)
    if folder is not None:
        _make(folder)
    # Small batches take the most steps, so they start first and the last process ends soonest.
    fingerprint = workload.fingerprint()
    runs = [Run(fingerprint, b, s, algorithm, folder) for b in sizes for s in dict.fromkeys(seeds)]
    done = {run: kept for run in runs if (kept := run.finished()) is not None}
    tell = progress or (lambda done, total, what: None)
    if done:
        tell(len(done), len(runs), f"{len(done)} of {len(runs)} runs kept from before")
    left = [run for run in runs if run not in done]
    if left:
        workload.check()
        processes = min(processes or _cores(), len(left))
        if processes > 1 and not can_travel(workload):
            tell(len(done), len(runs), "this workload cannot be sent to other processes: training in this one")
            processes = 1
        tell(len(done), len(runs), f"{len(left)} runs to train, {processes} at a time")
        results = train_here(workload, left) if processes == 1 else train_in_processes(workload, left, processes)
        try:
            with closing(results):
                for run, result in results:
                    done[run] = result
                    tell(len(done), len(runs), _line(result))
        except KeyboardInterrupt as error:
            raise Interrupted(f"interrupted after {len(done)} of {len(runs)} runs") from error
    return [done[run] for run in runs]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot write {folder}", value=error.strerror or str(error), hint="give another output folder"
        ) from error


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _line(curve: LearningCurve) -> str:
    how = "reached the target after" if curve.reached else "did not reach the target in"
    return f"batch size {curve.batch_size}, seed {curve.seed}: {how} {curve.samples:,} samples"
