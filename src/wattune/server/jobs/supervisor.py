"""Supervisor of the worker processes: starts them, restarts them after a crash, kills them if they hang."""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from wattune.server.jobs import leases
from wattune.server.jobs.claims import RENEWALS
from wattune.server.settings import Settings
from wattune.server.store import Database, StoreUnavailable

POLL_S = 0.5
STOP_S = 5.0
"""Timeout in seconds for a worker to reach its next evaluation when the server stops."""

EARLY_CRASH_S = 10.0
"""A worker that crashes within this time is restarted with exponential backoff, up to ``MAX_BACKOFF_S``."""

MAX_BACKOFF_S = 30.0

log = logging.getLogger("wattune.server.jobs.supervisor")


@dataclass
class _Slot:
    """Slot for one worker process; ``runs_once``: it is not restarted after a normal exit."""

    adds_example: bool = False
    runs_once: bool = False
    name: str = ""
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    not_before_s: float = 0.0
    early_crashes: int = field(default=0)


class Supervisor:
    """Context manager that keeps ``settings.workers`` worker processes running."""

    def __init__(self, settings: Settings, database: Database):
        self._settings, self._database = settings, database
        self._lease_s = settings.limits.lease_s
        self._renew_every_s, self._grace_s = self._lease_s / RENEWALS, 2 * self._lease_s / RENEWALS
        self._slots = [_Slot() for _ in range(settings.workers)] or [_Slot(runs_once=True)]
        self._slots[0].adds_example = True
        self._crashes: dict[str, str] = {}
        # After an outage of the server, workers on other machines get time to renew their leases.
        self._reliable_from_s = time.monotonic() + self._grace_s
        self._offset_s = time.time() - time.monotonic()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="wattune-supervisor", daemon=True)

    def __enter__(self) -> Supervisor:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def alive(self) -> int:
        """Number of running workers."""
        return sum(self._is_alive(slot) for slot in list(self._slots) if not slot.runs_once)

    @property
    def pids(self) -> list[int]:
        """Process ids of the running workers."""
        return [slot.process.pid for slot in list(self._slots) if slot.process is not None and self._is_alive(slot)]

    def stop(self) -> None:
        """Stop all workers; their units are requeued, and the attempts do not count."""
        self._stopping.set()
        self._thread.join()
        running = [slot for slot in self._slots if slot.process is not None]
        for slot in running:
            assert slot.process is not None
            with suppress(ProcessLookupError):
                slot.process.terminate()
        until_s = time.monotonic() + STOP_S
        for slot in running:
            assert slot.process is not None
            try:
                slot.process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                slot.process.kill()
                slot.process.wait()
            self._close(slot)
            with suppress(StoreUnavailable), self._database.session() as session:
                leases.release_worker(session, slot.name, time.time())

    def _watch(self) -> None:
        while not self._stopping.is_set():
            for slot in self._slots:
                self._check(slot)
            try:
                self._release_crashed()
                if self._leases_are_reliable():
                    self._kill_hung()
            except StoreUnavailable:  # retried at the next poll
                self._reliable_from_s = time.monotonic() + self._grace_s
            self._stopping.wait(POLL_S)

    def _leases_are_reliable(self) -> bool:
        """True if an expired lease means a hung worker.

        After the machine was suspended, its clock was set, or the database was unavailable, workers get time to
        renew their leases.
        """
        now_s = time.monotonic()
        offset_s = time.time() - now_s
        if abs(offset_s - self._offset_s) > self._renew_every_s:
            self._reliable_from_s = now_s + self._grace_s
        self._offset_s = offset_s
        return now_s >= self._reliable_from_s

    def _check(self, slot: _Slot) -> None:
        now_s = time.monotonic()
        if slot.process is not None and (code := slot.process.poll()) is not None:
            self._close(slot)
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            slot.process = None
            if slot.runs_once and code == 0:
                slot.not_before_s = float("inf")
                return
            self._crashes.setdefault(slot.name, f"the worker crashed: {how}")
            log.warning("worker %s crashed: %s", slot.name, how)
            slot.early_crashes = slot.early_crashes + 1 if now_s - slot.started_s < EARLY_CRASH_S else 0
            # The first restart is immediate.
            wait_s = min(2.0 ** (slot.early_crashes - 2), MAX_BACKOFF_S) if slot.early_crashes > 1 else 0.0
            slot.not_before_s = now_s + wait_s
        if slot.process is None and now_s >= slot.not_before_s:
            self._start(slot)

    def _start(self, slot: _Slot) -> None:
        slot.name = f"w{self._slots.index(slot) + 1}-{secrets.token_hex(3)}"
        slot.started_s = time.monotonic()
        config = {
            "name": slot.name,
            "store": str(self._settings.store),
            "database_url": self._settings.database_url,
            "adds_example": slot.adds_example,
            "works": not slot.runs_once,
            "memory_bytes": self._settings.worker_memory_bytes,
            "lease_s": self._lease_s,
        }
        try:
            slot.process = subprocess.Popen(
                [sys.executable, "-m", "wattune.server.jobs.worker_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            # Not on the command line, which every local user can read: a URL may contain a password.
            assert slot.process.stdin is not None
            slot.process.stdin.write(json.dumps(config).encode() + b"\n")
            slot.process.stdin.flush()
        except OSError as error:
            log.warning("cannot start a worker: %s", error)
            slot.not_before_s = time.monotonic() + MAX_BACKOFF_S

    def _kill_hung(self) -> None:
        """Kill workers whose lease has expired, since they hang; new ones are started in their slots."""
        with self._database.session(reads_only=True) as session:
            expired = leases.expired_workers(session, time.time(), self._lease_s)
        for slot in self._slots:
            if slot.name in expired and slot.process is not None:
                self._crashes.setdefault(
                    slot.name, f"the lease expired: the worker did not respond for {self._lease_s:.0f} s"
                )
                slot.process.kill()
        if expired - {slot.name for slot in self._slots}:  # workers of an earlier server
            with self._database.session() as session:
                leases.release_expired(session, time.time(), self._lease_s)

    def _release_crashed(self) -> None:
        for name, reason in list(self._crashes.items()):
            if any(slot.name == name and self._is_alive(slot) for slot in self._slots):
                continue
            with self._database.session() as session:
                leases.release_worker(session, name, time.time(), reason=reason)
            del self._crashes[name]

    @staticmethod
    def _is_alive(slot: _Slot) -> bool:
        return slot.process is not None and slot.process.poll() is None

    @staticmethod
    def _close(slot: _Slot) -> None:
        if slot.process is not None and slot.process.stdin is not None:
            with suppress(OSError):
                slot.process.stdin.close()
