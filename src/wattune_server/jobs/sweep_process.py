"""Process that does one sweep: the core's ``estimate`` in the sweep's folder, which resumes what is there.

``python -m wattune_server.jobs.sweep_process`` reads one line of JSON (see ``SweepConfig``) from standard input, and
exits at once when that is closed, which also happens if the server dies. It writes a byte to standard output every
second, and its outcome to ``OUTCOME`` in the folder. It knows no database: the server records what is in the folder.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from wattune.errors import InputError, OutputError, RecordError, TargetNotReached
from wattune.files import write_json
from wattune.records import LearningCurve, SampleEfficiency
from wattune.records.served import ServedModel, SweepRequest
from wattune_server import logs
from wattune_server.jobs.queue import batch_sizes, proxy_target
from wattune_server.jobs.runners import HEARTBEAT_S, OUTCOME
from wattune_server.store import Database, FileStore

if TYPE_CHECKING:  # torch is imported only after the server hears from this process, since that takes seconds
    from wattune.workloads import Workload


class SweepConfig(BaseModel):
    """Task of the process in the folder of a store.

    ``model`` and ``request``: those of the sweep, whose finished runs have the files ``curves``; without them the
    built-in example is added to a store at ``database_url`` without models. ``memory_bytes``: limit of its memory;
    ``executor``: Ray cluster that trains the runs, without a limit here.
    """

    store: Path
    job: str = ""
    model: dict[str, Any] = {}
    request: dict[str, Any] = {}
    curves: tuple[str, ...] = ()
    memory_bytes: int | None = None
    executor: str | None = None
    database_url: str = ""


def estimate_sweep(config: SweepConfig) -> SampleEfficiency:
    """Train the runs of the sweep, one after the other in this process or on the cluster, and return their curve.

    Raises: InputError, TargetNotReached, RecordError for an unusable checkpoint, OutputError.
    """
    from wattune.algorithms import canonical
    from wattune.proxy import estimate
    from wattune.proxy.run import ProxyRun

    try:
        model = ServedModel.parse(config.model, source=f"the model of job {config.job}")
        request = SweepRequest.model_validate(config.request)
    except (RecordError, ValidationError) as error:  # e.g. of another version
        raise InputError(f"the job cannot be read: {error}") from error
    files, folder = FileStore(config.store / "files"), config.store / "work" / config.job
    for sha256 in model.files:
        files.checked(sha256)  # a damaged file must not lead to a curve
    proxy = replace(
        served_proxy(model, files.path, proxy_target(model, request)), batch_sizes=batch_sizes(model, request)
    )
    fingerprint, algorithm = proxy.fingerprint(), canonical(request.algorithm)
    for sha256 in config.curves:  # the folder is not in a backup of the store
        with suppress(OutputError):
            curve = LearningCurve.parse(json.loads(files.read(sha256)), source=f"the curve {sha256}")
            path = ProxyRun(fingerprint, curve.batch_size, curve.seed, algorithm, folder).curve_path
            if path is not None and not path.exists():
                curve.save(path)
    # The device trains on data of its own, which is not here.
    workload = replace(
        proxy, name=model.model, proxy=proxy, data=lambda: proxy.data, batch_size=None, target_share=None
    )
    return estimate(
        workload,
        strategy=request.strategy,
        seeds=request.seeds,
        log_step_times=request.log_step_times,
        folder=folder,
        algorithm=algorithm,
        processes=1,
        executor=config.executor,
    )


def served_proxy(model: ServedModel, file: Callable[[str], Path], target: float | str | None) -> Workload:
    """Build the proxy workload of a model; ``file`` maps a hash to a path, ``target`` is the metric to reach."""
    from wattune.workloads.served import proxy_workload

    weights = None if model.weights is None else file(model.weights.sha256)
    return proxy_workload(model, weights, file, target=target)


def outcome_of(config: SweepConfig) -> dict[str, Any]:
    """Do the sweep, and describe its outcome: its curve, or why it failed."""
    from wattune.proxy.executor import ClusterUnavailable

    try:
        return {"curve": estimate_sweep(config).dump()}
    except Exception as error:  # noqa: BLE001  # entry point: any error ends the attempt
        # An unreadable record may be a truncated checkpoint, and a full disk may have space again.
        is_of_job = isinstance(error, (InputError, TargetNotReached))
        reason = str(error) if is_of_job else f"{type(error).__name__}: {error}"
        # Neither a database nor JSON takes every character, such as NUL.
        reason = "".join(char if char.isprintable() else "?" for char in " ".join(reason.split()))[:500]
        has_cluster = not isinstance(error, ClusterUnavailable)
        is_final = is_of_job and has_cluster and not isinstance(error, (OutputError, RecordError))
        is_damaged = isinstance(error, RecordError)
        return {"failed": reason, "is_final": is_final, "is_damaged": is_damaged, "counts": has_cluster}


def limit_memory(limit_bytes: int) -> None:
    """Limit the private memory of this process: a model that is too large fails its sweep, not the machine."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _stay_with_server() -> None:
    # The server sends nothing more, so its pipe becomes readable when it is closed, also if the server dies.
    while not select.select([sys.stdin.fileno()], [], [], HEARTBEAT_S)[0]:
        os.write(sys.stdout.fileno(), b".")
    os._exit(1)


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock of a sweep's folder. A process of an earlier server that still holds it, stopped, is killed."""
    with (folder / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            os.kill(int(lock.read()), signal.SIGKILL)
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def main() -> int:
    """Do one sweep, or add the example, and return the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides what Ctrl-C means
    config = SweepConfig.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=_stay_with_server, name="wattune-server", daemon=True).start()
    logs.configure()
    if config.memory_bytes is not None and config.executor is None:
        limit_memory(config.memory_bytes)
    if not config.job:
        from wattune_server.ingest import add_example

        database = Database(config.database_url)
        add_example(database, FileStore(config.store / "files"))
        database.close()
        return 0
    from wattune.algorithms.allocator import keep_freed_memory

    keep_freed_memory()
    folder = config.store / "work" / config.job
    folder.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder):
        (folder / OUTCOME).unlink(missing_ok=True)
        write_json(folder / OUTCOME, outcome_of(config))
    return 0


if __name__ == "__main__":
    sys.exit(main())
