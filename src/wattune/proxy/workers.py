"""Worker processes that train one run at a time and never outlive the process that started them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

import torch

from wattune.algorithms.allocator import keep_freed_memory
from wattune.errors import WattuneError
from wattune.proxy.run import ProxyRun
from wattune.proxy.training_run import Results, TrainRuns
from wattune.records import LearningCurve
from wattune.workloads import Workload

PARENT_CHECK_S = 1.0
"""Seconds between a worker's checks of its parent's process id; it notices a closed pipe at once."""

_workload: Workload | None = None


def obstacle(workload: Workload) -> str | None:
    """Return why no other process can build the workload; None if one can."""
    try:
        data = pickle.dumps(workload)
    except (pickle.PicklingError, AttributeError, TypeError):
        return "the workload cannot be pickled"
    if b"__main__" in data and not _is_importable(sys.modules["__main__"]):
        return "the workload has functions of a notebook or of stdin, which other processes cannot import"
    return None


def _is_importable(main: ModuleType) -> bool:
    """Return whether ``spawn`` can import the main module in another process: it needs a module or a file."""
    return main.__spec__ is not None or Path(getattr(main, "__file__", None) or os.devnull).is_file()


@contextmanager
def worker_pool(workload: Workload, processes: int) -> Iterator[TrainRuns]:
    """Open a function that trains runs, with one torch thread each, and yields the runs with their curves.

    With 1 process the runs are trained in this one, one after the other. The workers serve all calls; they end when
    the context ends and when this process dies. Raises: WattuneError if a worker crashed; what a run raises.
    """
    if processes == 1:
        yield partial(_here, workload)
        return
    spawn = multiprocessing.get_context("spawn")
    reader, writer = spawn.Pipe(duplex=False)
    executor = ProcessPoolExecutor(
        processes, mp_context=spawn, initializer=_start, initargs=(reader, os.getpid(), workload)
    )
    try:
        yield partial(_in_processes, executor)
    finally:
        writer.close()
        executor.shutdown(cancel_futures=True)
        reader.close()


def _here(workload: Workload, runs: Sequence[ProxyRun]) -> Results:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for run in runs:
            yield run, run.train(workload)
    finally:
        torch.set_num_threads(threads)


def _in_processes(executor: ProcessPoolExecutor, runs: Sequence[ProxyRun]) -> Results:
    try:
        with _interrupts_blocked():
            futures: dict[Future[LearningCurve], ProxyRun] = {executor.submit(_train, run): run for run in runs}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool as error:
        raise WattuneError(
            "a worker process crashed during a proxy run: out of memory, a workload that only this process can build, "
            "or a script without `if __name__ == '__main__':`; pass processes=1 to train in this process"
        ) from error


def _start(reader: Connection, parent: int, workload: Workload) -> None:
    global _workload
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    torch.set_num_threads(1)
    keep_freed_memory()
    _workload = workload
    threading.Thread(target=_end_with, args=(reader, parent), name="wattune-parent", daemon=True).start()


def _end_with(reader: Connection, parent: int) -> None:
    # Nothing is ever sent: the pipe becomes readable when its other end closes, also by the parent's death.
    while not reader.poll(PARENT_CHECK_S):
        if os.getppid() != parent:
            break
    os._exit(1)


def _train(run: ProxyRun) -> LearningCurve:
    assert _workload is not None
    return run.train(_workload)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C: processes started within never receive it, and this one receives it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # its own start would let interrupts through
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
