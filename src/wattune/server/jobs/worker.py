"""A worker process: takes units of work from the database, trains them, and says that it is still there.

``python -m wattune.server.jobs.worker`` reads one line of JSON from its standard input (see ``Task``), and ends at once
when that is closed, which also the death of the server does. At SIGTERM it stops at the next evaluation and gives its
unit back.
"""

from __future__ import annotations

import json
import logging
import os
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

from wattune.errors import InputError, OutputError, RecordError
from wattune.records import Evaluation
from wattune.server import logs
from wattune.server.jobs import leases
from wattune.server.jobs.leases import Claim, Outcome, Trained
from wattune.server.jobs.sweep import Sweep, Train, content, train_here
from wattune.server.store import Database, FileStore, StoreUnavailable

LOOK_EVERY_S = 0.5
"""How often a worker without work looks for some."""

_LOG = logging.getLogger("wattune.server.jobs.worker")


if TYPE_CHECKING:
    Log = logging.LoggerAdapter[logging.Logger]  # at run time, only from Python 3.11 on


class Lost(Exception):  # it is no error
    """The unit is not this worker's any more."""


class Stopped(Exception):  # it is no error
    """The server ends."""


@dataclass(frozen=True)
class Task:
    """What a worker process is told. ``offers_example``: it first sees to it that an empty store offers a model."""

    name: str
    store: str
    database_url: str
    executor: str | None = None
    at_once: int = 1
    offers_example: bool = False
    works: bool = True


class Worker:
    """One unit after the other. ``name`` is of this one alone, and in the holder of its leases."""

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
        """Work until ``stopping`` is set."""
        while not self.stopping.is_set():
            try:
                has_worked = self.step()
            except StoreUnavailable as error:
                self._log.warning("%s", error)
                has_worked = False
            if not has_worked:
                self.stopping.wait(LOOK_EVERY_S)

    def step(self) -> bool:
        """Take a unit and work on it; False where there is none. Raises: StoreUnavailable."""
        claim = self._claim()
        if claim is None:
            return False
        started_s = time.monotonic()
        with _Lease(self._database, claim, self._log) as lease:
            try:
                self._work_on(claim, lease)
                self._log.info("%s done in %.1f s", _named(claim), time.monotonic() - started_s)
            except Lost:
                self._log.warning("%s was lost: its result is dropped", _named(claim))
            except Stopped:
                with suppress(Lost):
                    self._tell(lambda: self._release(claim))
            except Exception as error:  # noqa: BLE001  # this is the door: whatever a run raises ends its attempt
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
            self._tell(lambda: self._decide(claim, outcome))
            if isinstance(outcome, dict):  # all of the job is in the store
                shutil.rmtree(sweep.folder, ignore_errors=True)
            return

        def look(_: Evaluation | None = None) -> None:
            if lease.is_lost.is_set():
                raise Lost
            if self.stopping.is_set():
                raise Stopped

        curve = sweep.train(claim, look, self._train)
        kept = content(curve)
        result = Trained(self._files.write(kept), len(kept), curve.samples, curve.reached)
        self._tell(lambda: self._finish(claim, result))
        sweep.forget(claim)

    def _finish(self, claim: Claim, result: Trained) -> None:
        with self._database.session() as session:
            if not leases.finish(session, claim, result, time.time()):
                raise Lost

    def _decide(self, claim: Claim, outcome: Outcome) -> None:
        with self._database.session() as session:
            if not leases.decide(session, claim, outcome, time.time()):
                raise Lost

    def _release(self, claim: Claim) -> None:
        with self._database.session() as session:
            leases.release(session, claim, time.time())

    def _failed(self, claim: Claim, error: Exception) -> None:
        # A record that cannot be read may be a checkpoint that was cut off, and a full disk may have room again.
        is_final = isinstance(error, InputError) and not isinstance(error, (OutputError, RecordError))
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        reason = " ".join(reason.split())[:500]
        self._log.warning("%s, attempt %d: %s", _named(claim), claim.attempt, reason)
        if isinstance(error, RecordError) and self._sweep is not None and not claim.chooses:
            with suppress(OSError):
                self._sweep.forget(claim)
        self._sweep = None

        def tell() -> None:
            with self._database.session() as session:
                leases.fail(session, claim, reason, time.time(), is_final=is_final)

        with suppress(Lost):
            self._tell(tell)

    def _tell(self, say: Callable[[], None]) -> None:
        """Say it to the database, which may be away for a while; what is lost after that is done again."""
        until_s = time.monotonic() + leases.LEASE_S
        while True:
            try:
                return say()
            except StoreUnavailable as error:
                self._log.warning("%s", error)
                if time.monotonic() > until_s or self.stopping.is_set():
                    raise Lost from error
                time.sleep(LOOK_EVERY_S)


class _Lease:
    """Renews a lease beside the work; ``is_lost`` is set when it is no more."""

    def __init__(self, database: Database, claim: Claim, log: Log):
        self.is_lost = threading.Event()
        self._database, self._claim, self._log = database, claim, log
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="wattune-lease", daemon=True)

    def __enter__(self) -> _Lease:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._done.wait(leases.BEAT_EVERY_S):
            try:
                with self._database.session() as session:
                    if not leases.beat(session, self._claim, time.time()):
                        self.is_lost.set()
                        return
            except StoreUnavailable as error:
                self._log.warning("%s", error)


def _named(claim: Claim) -> str:
    what = f"round {claim.seed}" if claim.chooses else f"batch size {claim.batch_size}, seed {claim.seed}"
    return f"job {claim.job_id}, {what}"


def _end_with_server() -> None:
    # Nothing more is ever sent: reading ends when the other end is closed, also by the server's death.
    # Not by `sys.stdin`, whose lock would be held when the process ends by itself.
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


def main() -> int:
    """The process. Returns its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides what Ctrl-C means
    task = Task(**json.loads(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with_server, name="wattune-server", daemon=True).start()
    logs.configure()
    database, store = Database(task.database_url), Path(task.store)
    if task.offers_example:
        from wattune.server.jobs.example import offer

        offer(database, FileStore(store / "files"))
    if task.works:
        stopping = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
        _work(task, database, store, stopping)
    database.close()
    return 0


def _work(task: Task, database: Database, store: Path, stopping: threading.Event) -> None:
    import torch

    torch.set_num_threads(1)
    if task.executor is None:
        worker = Worker(task.name, database, store)
        worker.stopping = stopping
        worker.run()
        return
    from wattune.server.jobs.cluster import on_cluster

    with on_cluster(task.executor) as train:
        workers = [Worker(task.name, database, store, train=train) for _ in range(task.at_once)]
        threads = [threading.Thread(target=worker.run, name=f"wattune-{n}") for n, worker in enumerate(workers)]
        for worker, thread in zip(workers, threads, strict=True):
            worker.stopping = stopping
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    sys.exit(main())
