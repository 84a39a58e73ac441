"""Runners: a process for each sweep that is worked on, and the thread that records what they leave in their folders.

A process trains in the folder ``work/JOB`` of the store and knows no database, see ``sweep_process``. Whatever is
killed, the folder has all finished runs and the last checkpoint, so the next process continues there.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import select

from wattune.errors import RecordError, WattuneError
from wattune.files import read_json
from wattune.records import LearningCurve
from wattune_server.jobs import queue
from wattune_server.settings import Settings
from wattune_server.store import Database, FileStore, StoreUnavailable
from wattune_server.store.schema import OPEN, JobRow, ModelRow

POLL_S = 0.5
"""Interval in seconds between looks at the processes and their folders."""

HEARTBEAT_S = 1.0
"""Interval in seconds at which a process says that it is alive."""

OUTCOME = "outcome.json"
"""Name of the file with the curve of the sweep, or the reason why there is none."""

log = logging.getLogger("wattune_server.jobs.runners")


class Sweep:
    """A sweep that is worked on: its process and its folder."""

    def __init__(self, job: str, config: dict[str, Any]):
        self.job = job
        self.folder = Path(config["store"], "work", job)
        self.recorded: set[Path] = set()
        self.process = start(config)
        self._heard_s = time.monotonic()

    def silent_s(self) -> float:
        """Seconds since the process last said that it is alive."""
        assert self.process.stdout is not None
        with suppress(BlockingIOError):
            if os.read(self.process.stdout.fileno(), 1 << 16):
                self._heard_s = time.monotonic()
        return time.monotonic() - self._heard_s


class Runners:
    """Context manager that works on the queue with ``settings.workers`` sweeps at a time.

    ``keep_lock`` is called before each look, and raises if the database is not this server's. ``adds_example``: a store
    without a model gets the built-in example.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        keep_lock: Callable[[], None] = lambda: None,
        *,
        adds_example: bool = True,
    ):
        self._settings, self._database, self._keep_lock = settings, database, keep_lock
        self._is_filled = not adds_example
        self._files = FileStore(settings.store / "files")
        self._sweeps: list[Sweep] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="wattune-runners", daemon=True)

    def __enter__(self) -> Runners:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _work(self) -> None:
        example: list[subprocess.Popen[bytes]] = []
        while not self._stopping.is_set():
            try:
                self._keep_lock()
                if not self._is_filled:  # asked until the database answers, and not at every look
                    with self._database.session(reads_only=True) as session:
                        has_model = session.scalar(select(ModelRow.name).limit(1)) is not None
                    if not has_model:
                        example.append(start({"store": str(self._settings.store), "database_url": self._database.url}))
                    self._is_filled = True
                self.look()
            except WattuneError as error:  # the database or the disk may be back at the next look
                log.warning("%s", error)
            self._stopping.wait(POLL_S)
        for process in (*example, *(sweep.process for sweep in self._sweeps)):
            kill(process)
        with suppress(StoreUnavailable), self._database.session() as session:
            queue.release(session, working=set())

    def look(self) -> None:
        """Record what is new in the folders, and start processes for waiting sweeps.

        Raises: StoreUnavailable, OutputError; the next look goes on.
        """
        with self._database.session(reads_only=True) as session:
            states = dict(session.execute(select(JobRow.id, JobRow.state).where(JobRow.state.in_(OPEN))).all())
        for sweep in list(self._sweeps):
            if states.get(sweep.job) != "running" or self._has_ended(sweep):  # in the first case it was cancelled
                kill(sweep.process)
                self._sweeps.remove(sweep)
        working = {sweep.job for sweep in self._sweeps}
        if any(state == "running" and job not in working for job, state in states.items()):
            with self._database.session() as session:  # an earlier server was killed
                queue.release(session, working=working)
        while "waiting" in states.values() and len(self._sweeps) < self._settings.workers and self._begin():
            pass

    def _begin(self) -> bool:
        """Start a process for the next waiting sweep; False if there is none."""
        with self._database.session() as session:
            job = queue.begin(session, time.time())
            if job is None:
                return False
            curves = [run.curve_sha256 for run in queue.runs(session, job.id)]
        config: dict[str, Any] = {"job": job.id, "model": job.model, "request": job.request, "curves": curves}
        config |= {"store": str(self._settings.store), "memory_bytes": self._settings.worker_memory_bytes}
        config["executor"] = self._settings.executor
        try:
            self._sweeps.append(Sweep(job.id, config))
            log.info("job %s: started", job.id)
        except OSError as error:
            with self._database.session() as session:
                queue.fail(session, job.id, f"cannot start a process: {error}", time.time())
        return True

    def _has_ended(self, sweep: Sweep) -> bool:
        """Record new curves, and the end of the sweep's process."""
        code, silent_s = sweep.process.poll(), sweep.silent_s()  # the code first: what was written before is seen
        for path in sorted({*sweep.folder.glob("b*-s*.json")} - sweep.recorded):
            self._record(sweep, path)
        if code is None and silent_s < self._settings.limits.runner_silence_s:
            return False
        if code is None:
            how = f"the process of the sweep did not respond for {silent_s:.0f} s"
        else:
            how = "the process of the sweep " + (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
            )
        outcome: Any = {"failed": how}
        with suppress(RecordError):
            outcome = read_json(sweep.folder / OUTCOME)
        with self._database.session() as session:
            if "curve" in outcome:
                queue.finish(session, sweep.job, outcome["curve"], time.time())
            else:
                flags = {name: outcome[name] for name in ("is_final", "counts") if name in outcome}
                queue.fail(session, sweep.job, outcome["failed"], time.time(), **flags)
        if "curve" in outcome or outcome.get("is_damaged"):  # the store has the finished runs
            shutil.rmtree(sweep.folder, ignore_errors=True)
        level = logging.INFO if "curve" in outcome else logging.WARNING
        log.log(level, "job %s: %s", sweep.job, outcome.get("failed", "done"))
        return True

    def _record(self, sweep: Sweep, path: Path) -> None:
        try:
            curve = LearningCurve.load(path)
        except RecordError:  # the disk has damaged it: the process reports that
            sweep.recorded.add(path)
            return
        content = curve_bytes(curve)
        sha256 = self._files.write(content)
        with self._database.session() as session:
            is_new = queue.record_run(session, sweep.job, curve, sha256, len(content), time.time())
        sweep.recorded.add(path)
        if is_new:
            log.info("job %s, batch size %d, seed %d: done", sweep.job, curve.batch_size, curve.seed)


def start(config: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a process for a sweep, or to add the example."""
    process = subprocess.Popen(
        [sys.executable, "-m", "wattune_server.jobs.sweep_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    # Not on the command line, which every local user can read: a URL may contain a password.
    with suppress(BrokenPipeError):  # it has ended already: its exit code says how
        process.stdin.write(json.dumps(config).encode() + b"\n")
        process.stdin.flush()
    return process


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, if it has not ended, and forget it."""
    process.kill()
    with suppress(OSError), process:  # closes its pipes, and waits for it
        pass


def curve_bytes(curve: LearningCurve) -> bytes:
    """Serialize a learning curve canonically: the bytes depend on the run alone, not on its time."""
    record = curve.dump()
    record["provenance"].pop("created_at", None)
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
