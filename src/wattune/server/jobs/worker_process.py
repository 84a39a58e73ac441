"""Worker process of a server: works on the units of its database.

``python -m wattune.server.jobs.worker_process`` reads one line of JSON (see ``WorkerConfig``) from standard input, and
exits at once when that is closed, which also happens if the server dies. On SIGTERM it stops at the next evaluation and
requeues its unit.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from wattune.server import logs
from wattune.server.jobs.claims import LEASE_S
from wattune.server.jobs.store_queue import StoreQueue
from wattune.server.jobs.worker import Worker
from wattune.server.store import Database, FileStore


@dataclass(frozen=True)
class WorkerConfig:
    """Configuration of a worker process. ``adds_example``: add the built-in example to an empty store first.

    ``memory_bytes``: limit of its private memory.
    """

    name: str
    store: str
    database_url: str
    adds_example: bool = False
    works: bool = True
    memory_bytes: int | None = None
    lease_s: float = LEASE_S


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
        import torch

        from wattune.algorithms.allocator import keep_freed_memory

        torch.set_num_threads(1)
        keep_freed_memory()
        worker = Worker(StoreQueue(config.name, database, store, config.lease_s))
        signal.signal(signal.SIGTERM, lambda *_: worker.stopping.set())
        worker.run()
    database.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
