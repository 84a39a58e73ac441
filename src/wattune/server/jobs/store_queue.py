"""Queue of units in the database of a store, as a worker uses it; no torch."""

from __future__ import annotations

import time
from pathlib import Path

from wattune.records import LearningCurve
from wattune.server.jobs import leases
from wattune.server.jobs.claims import LEASE_S, Claim, Outcome, RunResult, content
from wattune.server.store import Database, FileStore


class StoreQueue:
    """Queue of units in a database, with the files of its store. ``name``: unique, part of the holder of its leases."""

    def __init__(self, name: str, database: Database, store: Path, lease_s: float = LEASE_S):
        self.name = name
        self.files = FileStore(store / "files")
        self.work = store / "work"
        self._database, self._lease_s = database, lease_s

    def claim(self) -> Claim | None:
        """Claim a unit; None if there is none."""
        now_s = time.time()
        with self._database.session(reads_only=True) as session:
            if not leases.is_waiting(session, now_s):
                return None
        with self._database.session() as session:
            return leases.claim(session, self.name, now_s, self._lease_s)

    def renew(self, claim: Claim) -> bool:
        """Renew the lease; False if the worker no longer holds the unit."""
        with self._database.session() as session:
            return leases.renew(session, claim, time.time())

    def finish(self, claim: Claim, curve: LearningCurve) -> bool:
        """Record the curve of a run; False if the worker no longer holds the unit."""
        curve_bytes = content(curve)
        result = RunResult(self.files.write(curve_bytes), len(curve_bytes), curve.samples, curve.reached)
        with self._database.session() as session:
            return leases.finish(session, claim, result, time.time())

    def choose(self, claim: Claim, outcome: Outcome) -> bool:
        """Record a choice; False if the worker no longer holds the unit."""
        with self._database.session() as session:
            return leases.record_choice(session, claim, outcome, time.time())

    def fail(self, claim: Claim, reason: str, *, is_final: bool) -> bool:
        """Record a failed attempt; False if the worker no longer holds the unit."""
        with self._database.session() as session:
            return leases.fail(session, claim, reason, time.time(), is_final=is_final)

    def release(self, claim: Claim) -> None:
        """Requeue the unit; the attempt does not count."""
        with self._database.session() as session:
            leases.release(session, claim, time.time())
