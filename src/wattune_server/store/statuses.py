"""Statuses of devices, held in memory and written in batches: a device reports its status more often than all else."""

from __future__ import annotations

import threading

from sqlalchemy.dialects import postgresql, sqlite

from wattune.records.served import DeviceStatus
from wattune_server.store.database import Database, StoreUnavailable
from wattune_server.store.schema import DeviceRow

WRITE_EVERY_S = 1.0
"""Interval in seconds between writes. A crash can lose this much, until the device reports again."""

READER_S = 0.2
"""Patience of a reader: while the database is locked, it gets the statuses that were written before."""

MOST = 10_000
"""Maximum number of statuses in memory; more are rejected while the database does not respond."""


class Statuses:
    """The statuses that are not written yet, the newest of each device. Thread-safe."""

    def __init__(self, database: Database):
        self._database = database
        self._newest: dict[str, tuple[DeviceStatus, float]] = {}
        self._lock = threading.Lock()
        self._writing = threading.Lock()

    def put(self, status: DeviceStatus, now_s: float) -> None:
        """Hold the status of a device, replacing the previous one. Raises: StoreUnavailable if there are too many."""
        with self._lock:
            if len(self._newest) >= MOST and status.device not in self._newest:
                raise StoreUnavailable("the statuses of too many devices are not written yet")
            self._newest[status.device] = status, now_s

    def flush(self, patience_s: float = -1) -> None:
        """Write all statuses; call this before reading them from the database.

        If the database is unavailable, they stay in memory and the next write includes them. ``patience_s``: the
        longest wait for a write that has begun, for a reader.
        """
        if not self._writing.acquire(timeout=patience_s):
            return
        try:
            with self._lock:
                batch, self._newest = self._newest, {}
            try:
                if batch:
                    self._write(batch)
            except BaseException:
                with self._lock:
                    self._newest = {**batch, **self._newest}
                raise
        except StoreUnavailable:
            pass
        finally:
            self._writing.release()

    def _write(self, batch: dict[str, tuple[DeviceStatus, float]]) -> None:
        values = [
            {"name": name, "status": status.model_dump(mode="json"), "seen_s": seen_s}
            for name, (status, seen_s) in batch.items()
        ]
        insert = (sqlite if self._database.is_sqlite else postgresql).insert(DeviceRow.__table__)
        changes = {name: insert.excluded[name] for name in ("status", "seen_s")}
        upsert = insert.on_conflict_do_update(index_elements=["name"], set_=changes)
        with self._database.session() as session:
            session.connection().execute(upsert, values)
