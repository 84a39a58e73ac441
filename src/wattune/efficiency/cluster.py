"""Proxy runs over a Ray cluster: each is a task of one core, and Ray does it again where a node or a process dies.

Nodes need wattune, the same version of it and of torch, and of a workload the files at the same paths. They keep no
checkpoints: what dies with a node is the run that it was at.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from wattune.efficiency.runs import Run
from wattune.efficiency.workers import Results
from wattune.errors import InputError, WattuneError, WorkloadError
from wattune.executor import cluster_address
from wattune.records import LearningCurve
from wattune.workloads import Workload

ANSWER_S = 10.0
"""How long a cluster may take to answer."""

RETRIES = 5
"""How often a run is begun again after its node or its process has died."""


@contextmanager
def connected(executor: str) -> Iterator[Any]:
    """Ray, connected to the cluster; "ray" alone starts one that ends with the context. Where this process is connected
    already, it is used as it is, whatever its address.

    Raises: InputError as ``cluster_address``, and where nothing answers at the address.
    """
    address = cluster_address(executor)
    # Before it is imported: it would tell its makers of its use, and warns of what tasks without GPUs will see.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():  # by the caller, whose it stays
        yield ray
        return
    own: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    _check_answers(address)
    with _handlers_kept():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise InputError(f"no Ray cluster at {address}", value=reason) from error
    try:
        yield ray
    finally:
        with _handlers_kept():
            ray.shutdown()


@contextmanager
def cluster_training(workload: Workload, executor: str) -> Iterator[Callable[[Sequence[Run]], Results]]:
    """Gives a function that trains runs on the cluster and yields them with their curves as they come.

    Raises: InputError; WorkloadError for a workload that cannot be sent; what a run raises.
    """
    with connected(executor) as ray:
        try:
            sent = ray.put(workload)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise WorkloadError(f"{workload.name} cannot be sent to a cluster", value=str(error)) from error
        yield partial(_on_nodes, ray, ray.remote(num_cpus=1, max_retries=RETRIES)(_train), sent)


def outcome(ray: Any, task: Any) -> Any:
    """What a task returned. Raises: what it raised; WattuneError where the cluster could not do it."""
    try:
        return ray.get(task)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise cause if isinstance(cause, WattuneError) else WattuneError(f"on the cluster: {cause}") from None
    except ray.exceptions.RayError as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise WattuneError(f"the cluster could not train a run: {reason}") from error


def _check_answers(address: str) -> None:
    """Ray itself would try for minutes. Raises: InputError."""
    host, separator, port = address.removeprefix("ray://").rpartition(":")
    if not separator:
        return  # "local", "auto": it looks for one on this machine
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(f"no Ray cluster at {address}", value=str(error)) from error


def _on_nodes(ray: Any, remote: Any, workload: Any, runs: Sequence[Run]) -> Results:
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


def _train(workload: Workload, run: Run) -> LearningCurve:
    import torch

    torch.set_num_threads(1)
    return run.train(workload)


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Ray puts its own handler of SIGTERM in place of ours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
