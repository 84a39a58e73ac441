"""Worker processes that train one run at a time and never outlive the process that started them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection

import torch

from wattune.efficiency.runs import Run
from wattune.errors import WattuneError
from wattune.records import LearningCurve
from wattune.workloads import Workload

LOOK_EVERY_S = 1.0
"""How often a worker looks whether its parent is another one; the closing of the pipe it sees at once."""

Results = Generator[tuple[Run, LearningCurve], None, None]
"""Finished runs with their curves."""

_workload: Workload | None = None


def can_travel(workload: Workload) -> bool:
    """Whether the workload can be sent to another process."""
    try:
        pickle.dumps(workload)
    except (pickle.PicklingError, AttributeError, TypeError):
        return False
    return True


@contextmanager
def training(workload: Workload, processes: int) -> Iterator[Callable[[Sequence[Run]], Results]]:
    """Gives a function that trains runs and yields them with their curves as they come, with one torch thread each.

    With 1 process they are trained in this one, one after the other. The workers serve all calls; they end at once when
    this is left, and when this process dies. Raises: WattuneError where a worker ended by itself; what a run raises.
    """
    if processes == 1:
        yield partial(_here, workload)
        return
    spawn = multiprocessing.get_context("spawn")
    watched, held = spawn.Pipe(duplex=False)
    executor = ProcessPoolExecutor(
        processes, mp_context=spawn, initializer=_start, initargs=(watched, os.getpid(), workload)
    )
    try:
        yield partial(_in_processes, executor)
    finally:
        held.close()
        executor.shutdown(cancel_futures=True)
        watched.close()


def _here(workload: Workload, runs: Sequence[Run]) -> Results:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for run in runs:
            yield run, run.train(workload)
    finally:
        torch.set_num_threads(threads)


def _in_processes(executor: ProcessPoolExecutor, runs: Sequence[Run]) -> Results:
    try:
        with _interrupts_held():
            futures: dict[Future[LearningCurve], Run] = {executor.submit(_train, run): run for run in runs}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise WattuneError(
            "a process that trained a proxy run ended by itself: out of memory, a workload that only this process "
            "can build, or a script that does not start under `if __name__ == '__main__':`; "
            "pass processes=1 to train in this process"
        ) from error


def _start(watched: Connection, parent: int, workload: Workload) -> None:
    global _workload
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    torch.set_num_threads(1)
    _workload = workload
    threading.Thread(target=_end_with, args=(watched, parent), name="wattune-parent", daemon=True).start()


def _end_with(watched: Connection, parent: int) -> None:
    # Nothing is ever sent: the pipe becomes readable when its other end is closed, also by the parent's death.
    while not watched.poll(LOOK_EVERY_S):
        if os.getppid() != parent:
            break
    os._exit(1)


def _train(run: Run) -> LearningCurve:
    assert _workload is not None
    return run.train(_workload)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started in here are deaf to Ctrl-C from their first moment; this one hears it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # its own start would let interrupts through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
