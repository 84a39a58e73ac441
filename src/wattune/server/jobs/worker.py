"""Worker process: claims units of work from the database, trains them, and renews its lease meanwhile.

``python -m wattune.server.jobs.worker`` reads one line of JSON (see ``WorkerConfig``) from standard input, and exits at
once when that is closed, which also happens if the server dies. On SIGTERM it stops at the next evaluation and
requeues its unit.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, stop_when_event_set, wait_fixed

from wattune.errors import InputError, OutputError, RecordError, TargetNotReached
from wattune.records import Evaluation
from wattune.server import logs
from wattune.server.jobs import leases
from wattune.server.jobs.leases import Claim, Outcome, RunResult
from wattune.server.jobs.sweep_unit import Sweep, Train, content, train_here
from wattune.server.store import Database, FileStore, StoreUnavailable

POLL_S = 0.5
"""Interval in seconds at which an idle worker polls for a unit."""

_LOG = logging.getLogger("wattune.server.jobs.worker")


if TYPE_CHECKING:
    Log = logging.LoggerAdapter[logging.Logger]  # at run time, only from Python 3.11 on


class LeaseLost(Exception):  # control flow, not an error
    """The worker no longer holds the unit."""


class ShutdownRequested(Exception):  # control flow, not an error
    """The server is stopping."""


@dataclass(frozen=True)
class WorkerConfig:
    """Configuration of a worker process. ``adds_example``: add the built-in example to an empty store first.

    ``memory_bytes``: limit of its private memory.
    """

    name: str
    store: str
    database_url: str
    executor: str | None = None
    at_once: int = 1
    adds_example: bool = False
    works: bool = True
    memory_bytes: int | None = None


class Worker:
    """Processor of units, one at a time. ``name``: unique name, part of the holder of its leases."""

    def __init__(self, name: str, database: Database, store: Path, *, train: Train = train_here):
        self.name = name
        self.stopping = threading.Event()
        self._database = database
        self._files = FileStore(store / "files")
        self._work = store / "work"
        self._train = train
        self._sweep: Sweep | None = None
        self._log = logging.LoggerAdapter(_LOG, {"worker": name})

    def run(self) -> None:
        """Process units until ``stopping`` is set."""
        while not self.stopping.is_set():
            try:
                did_work = self.step()
            except StoreUnavailable as error:
                self._log.warning("%s", error)
                did_work = False
            if not did_work:
                self.stopping.wait(POLL_S)

    def step(self) -> bool:
        """Claim and process one unit; False if there is none. Raises: StoreUnavailable."""
        claim = self._claim()
        if claim is None:
            return False
        started_s = time.monotonic()
        with _Lease(self._database, claim, self._log) as lease:
            try:
                self._work_on(claim, lease)
                self._log.info("%s done in %.1f s", _label(claim), time.monotonic() - started_s)
            except LeaseLost:
                self._log.warning("%s: lease lost, result dropped", _label(claim))
            except ShutdownRequested:
                with suppress(LeaseLost):
                    self._write_with_retries(lambda: self._release(claim))
            except Exception as error:  # noqa: BLE001  # entry point: any error ends the attempt
                self._failed(claim, error)
        return True

    def _claim(self) -> Claim | None:
        now_s = time.time()
        with self._database.session(reads_only=True) as session:
            if not leases.is_waiting(session, now_s):
                return None
        with self._database.session() as session:
            return leases.claim(session, self.name, now_s)

    def _work_on(self, claim: Claim, lease: _Lease) -> None:
        if self._sweep is None or self._sweep.job_id != claim.job_id:
            self._sweep = None
            self._sweep = Sweep(claim, self._files, self._work)
        sweep = self._sweep
        if claim.chooses:
            outcome = sweep.choose(claim)
            self._write_with_retries(lambda: self._decide(claim, outcome))
            if isinstance(outcome, dict):  # the job is complete in the store
                shutil.rmtree(sweep.folder, ignore_errors=True)
            return

        def look(_: Evaluation | None = None) -> None:
            if lease.is_lost.is_set():
                raise LeaseLost
            if self.stopping.is_set():
                raise ShutdownRequested

        curve = sweep.train(claim, look, self._train)
        curve_bytes = content(curve)
        result = RunResult(self._files.write(curve_bytes), len(curve_bytes), curve.samples, curve.reached)
        self._write_with_retries(lambda: self._finish(claim, result))
        sweep.forget(claim)

    def _finish(self, claim: Claim, result: RunResult) -> None:
        with self._database.session() as session:
            if not leases.finish(session, claim, result, time.time()):
                raise LeaseLost

    def _decide(self, claim: Claim, outcome: Outcome) -> None:
        with self._database.session() as session:
            if not leases.record_choice(session, claim, outcome, time.time()):
                raise LeaseLost

    def _release(self, claim: Claim) -> None:
        with self._database.session() as session:
            leases.release(session, claim, time.time())

    def _failed(self, claim: Claim, error: Exception) -> None:
        # An unreadable record may be a truncated checkpoint, and a full disk may have space again.
        is_of_job = isinstance(error, (InputError, TargetNotReached))
        is_final = is_of_job and not isinstance(error, (OutputError, RecordError))
        reason = str(error) if is_of_job else f"{type(error).__name__}: {error}"
        reason = " ".join(reason.split())[:500]
        self._log.warning("%s, attempt %d: %s", _label(claim), claim.attempt, reason)
        if isinstance(error, RecordError) and self._sweep is not None and not claim.chooses:
            with suppress(OSError):
                self._sweep.forget(claim)
        self._sweep = None

        def write() -> None:
            with self._database.session() as session:
                leases.fail(session, claim, reason, time.time(), is_final=is_final)

        with suppress(LeaseLost):
            self._write_with_retries(write)

    def _write_with_retries(self, write: Callable[[], None]) -> None:
        """Write to the database with retries until the lease would expire.

        Raises: LeaseLost if it stays unavailable; the unit is then processed again.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(StoreUnavailable),
            stop=stop_after_delay(leases.LEASE_S) | stop_when_event_set(self.stopping),
            wait=wait_fixed(POLL_S),
            after=lambda attempt: self._log.warning("%s", attempt.outcome and attempt.outcome.exception()),
            reraise=True,
        )
        try:
            retrying(write)
        except StoreUnavailable as error:
            raise LeaseLost from error


class _Lease:
    """Context manager that renews a lease in a thread; sets ``is_lost`` when the lease is lost."""

    def __init__(self, database: Database, claim: Claim, log: Log):
        self.is_lost = threading.Event()
        self._database, self._claim, self._log = database, claim, log
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="wattune-lease", daemon=True)

    def __enter__(self) -> _Lease:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._done.wait(leases.RENEW_EVERY_S):
            try:
                with self._database.session() as session:
                    if not leases.renew(session, self._claim, time.time()):
                        self.is_lost.set()
                        return
            except StoreUnavailable as error:
                self._log.warning("%s", error)


def _label(claim: Claim) -> str:
    what = f"round {claim.seed}" if claim.chooses else f"batch size {claim.batch_size}, seed {claim.seed}"
    return f"job {claim.job_id}, {what}"


def limit_memory(limit_bytes: int) -> None:
    """Limit the private memory of this process: a model that is too large fails its unit, not the machine."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _end_with_server() -> None:
    # The server sends nothing more, so this read returns when the pipe is closed, also if the server dies.
    # Not through `sys.stdin`, whose lock would still be held at a normal exit.
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def main() -> int:
    """Run a worker process and return its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides what Ctrl-C means
    config = WorkerConfig(**json.loads(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_server, name="wattune-server", daemon=True).start()
    logs.configure()
    if config.memory_bytes is not None:
        limit_memory(config.memory_bytes)
    database, store = Database(config.database_url), Path(config.store)
    if config.adds_example:
        from wattune.server.ingest import add_example

        add_example(database, FileStore(store / "files"))
    if config.works:
        stopping = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
        _work(config, database, store, stopping)
    database.close()
    return 0


def _work(config: WorkerConfig, database: Database, store: Path, stopping: threading.Event) -> None:
    import torch

    torch.set_num_threads(1)
    if config.executor is None:
        worker = Worker(config.name, database, store)
        worker.stopping = stopping
        worker.run()
        return
    from wattune.server.jobs.sweep_unit import on_cluster

    with on_cluster(config.executor) as train:
        workers = [Worker(config.name, database, store, train=train) for _ in range(config.at_once)]
        threads = [threading.Thread(target=worker.run, name=f"wattune-{n}") for n, worker in enumerate(workers)]
        for worker, thread in zip(workers, threads, strict=True):
            worker.stopping = stopping
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    sys.exit(main())
