"""Proxy runs on a Ray cluster: each is a task of one core, and Ray retries it if its node or process dies.

Nodes need the same versions of wattune and torch, and the workload's files at the same paths. They keep no checkpoints:
a run on a node that dies starts over.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from wattune.errors import WattuneError, WorkloadError
from wattune.program.workload import ProgramWorkload
from wattune.proxy.executor import ClusterUnavailable, cluster_address
from wattune.proxy.training_run import Results, TrainRuns
from wattune.records import LearningCurve

if TYPE_CHECKING:
    from wattune.workloads import Workload

ANSWER_S = 10.0
"""Timeout of the connection to a cluster, in seconds."""

RETRIES = 5
"""Retries of a run after its node or its process has died."""


@contextmanager
def connected(executor: str) -> Iterator[Any]:
    """Connect Ray to the cluster; "ray" alone starts one that ends with the context. If this process is already
    connected, its connection is used, whatever the address.

    Raises: InputError as ``cluster_address``; ClusterUnavailable.
    """
    address = cluster_address(executor)
    # Before the import: without these Ray reports usage statistics, and warns about GPUs in tasks that use none.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():  # the caller's own connection: leave it open
        yield ray
        return
    own: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    _check_answers(address)
    with _handlers_restored():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise ClusterUnavailable(f"no Ray cluster at {address}", value=reason) from error
    try:
        yield ray
    finally:
        with _handlers_restored():
            ray.shutdown()


@contextmanager
def cluster_training(workload: Workload | ProgramWorkload, executor: str) -> Iterator[TrainRuns]:
    """Open a function that trains runs on the cluster and yields each with its curve as it finishes.

    Raises: InputError; WorkloadError if the workload cannot be pickled; what a run raises.
    """
    with connected(executor) as ray:
        try:
            reference = ray.put(workload)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise WorkloadError(f"{workload.name} cannot be sent to a cluster", value=str(error)) from error
        yield partial(_on_nodes, ray, ray.remote(num_cpus=1, max_retries=RETRIES)(_train), reference)


def outcome(ray: Any, task: Any) -> Any:
    """The result of a task. Raises: the task's own error; WattuneError if the cluster failed."""
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, WattuneError) else WattuneError(f"on the cluster: {cause}") from None
    except ray.exceptions.RayError as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise WattuneError(f"the cluster could not train a run: {reason}") from error


def _check_answers(address: str) -> None:
    """Connect once: Ray itself would retry for minutes. Raises: ClusterUnavailable."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if not separator:
        return  # "local", "auto": Ray looks for a cluster on this machine
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ClusterUnavailable(f"no Ray cluster at {address}", value=str(error)) from error


def _on_nodes(ray: Any, remote: Any, workload: Any, runs: Sequence[Any]) -> Results:
    pending = {remote.remote(workload, replace(run, folder=None)): run for run in runs}
    try:
        while pending:
            [task], _ = ray.wait(list(pending), num_returns=1)
            curve = outcome(ray, task)
            run = pending.pop(task)
            if run.curve_path is not None:
                curve.save(run.curve_path)
            yield run, curve
    finally:
        for task in pending:
            ray.cancel(task, force=True)


def _train(workload: Workload | ProgramWorkload, run: Any) -> LearningCurve:
    if not isinstance(workload, ProgramWorkload):
        import torch

        torch.set_num_threads(1)
    curve: LearningCurve = run.train(workload)
    return curve


@contextmanager
def _handlers_restored() -> Iterator[None]:
    """Restore our handler of SIGTERM, which Ray replaces with its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
