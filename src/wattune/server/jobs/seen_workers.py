"""Workers on other machines that were seen lately, in the memory of this server."""

from __future__ import annotations

import threading
from collections import OrderedDict

from pydantic import BaseModel

from wattune.server.jobs.claims import WorkerDevice

MOST = 1000
"""Maximum number of workers in memory, least recently seen evicted first."""

SEEN_S = 60.0
"""A worker that was seen within this many seconds counts as online; an idle one claims every 20 s."""


class SeenWorker(BaseModel):
    """A worker on another machine. ``unit``: what it holds, None if it is idle; ``seen_s``: seconds since 1970."""

    name: str
    token: str | None
    device: WorkerDevice
    torch: str | None
    unit: str | None
    seen_s: float


class SeenWorkers:
    """The workers that were seen lately, by the id of their token and their name. Thread-safe."""

    def __init__(self) -> None:
        self._workers: OrderedDict[str, SeenWorker] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, key: str, worker: SeenWorker) -> None:
        """Add a worker or replace what was known of it."""
        with self._lock:
            self._workers[key] = worker
            self._workers.move_to_end(key)
            if len(self._workers) > MOST:
                self._workers.popitem(last=False)

    def update(self, key: str, unit: str | None, now_s: float) -> None:
        """Note what a worker holds now. One that has not claimed since this server began is not known."""
        with self._lock:
            worker = self._workers.get(key)
            if worker is not None:
                self._workers[key] = worker.model_copy(update={"unit": unit, "seen_s": now_s})
                self._workers.move_to_end(key)

    def listing(self, now_s: float) -> list[SeenWorker]:
        """List the workers that are online, in order of name."""
        with self._lock:
            workers = [worker for worker in self._workers.values() if now_s - worker.seen_s <= SEEN_S]
        return sorted(workers, key=lambda worker: (worker.name, worker.token or ""))
