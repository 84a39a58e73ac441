"""Simulated devices for ``wattune serve --demo``, so that the pages have something to show.

Each board is a process that acts like any device, over HTTP: it fetches the model and its weights, measures a profile
(in virtual time), waits for the curve of the server's proxy runs, and really trains at the chosen point, repeatedly
under different caps. All records are marked as simulated.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, cycle
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from wattune.errors import ServerRefused, ServerUnavailable, WattuneError

MODEL = "resnet8-digits"

PAUSE_S = 10.0
"""Pause between two runs of a board, so that the result can be seen."""

STARTUP_S = 120.0
"""Timeout of a board that waits for the server, which may still be training its first model."""


class DemoBoard(NamedTuple):
    """A simulated board, and the caps that it trains under, one run after the other."""

    name: str
    device: str
    caps_w: tuple[float, ...]


BOARDS = (
    DemoBoard("demo-nano-1", "sim:jetson-nano", (5.5, 4.5, 4.2)),
    DemoBoard("demo-tx2nx", "sim:jetson-tx2-nx", (6.8, 5.6, 5.0)),
    DemoBoard("demo-nano-2", "sim:jetson-nano", (4.2, 5.0, 4.6)),
)


def load() -> None:
    """Begin to import what the boards need, in the process from which they are forked. The server needs none of it."""
    multiprocessing.set_forkserver_preload(["wattune.job.run", "wattune_server.ingest", "sklearn.datasets"])
    forkserver.ensure_running()


@contextmanager
def start(url: str, store: Path | None = None) -> Iterator[list[BaseProcess]]:
    """Run one process per board until the context is left or this process dies; yield the processes.

    ``url``: URL of the server, which may become ready later. ``store``: its store, to which another process adds the
    built-in example; None if it has a model.
    """
    load()
    context = multiprocessing.get_context("forkserver")
    with tempfile.TemporaryDirectory(prefix="wattune-demo-boards-", ignore_cleanup_errors=True) as folder:
        boards: list[BaseProcess] = [context.Process(target=main, args=(url, board, folder)) for board in BOARDS]
        makers = [] if store is None else [context.Process(target=add_model, args=(store,))]
        started: list[BaseProcess] = []
        try:
            for process in (*makers, *boards):
                process.start()
                started.append(process)
            yield boards
        finally:
            for process in started:
                process.kill()
                process.join()


def add_model(store: Path) -> None:
    """Add the built-in example to a store. A process of the server would import torch once more."""
    from wattune_server.ingest import add_example
    from wattune_server.settings import sqlite_url
    from wattune_server.store import Database, FileStore

    _end_with_parent()
    database = Database(sqlite_url(store))
    add_example(database, FileStore(store / "files"))
    database.close()


def play(url: str, board: DemoBoard, folder: Path, *, runs: int | None = None) -> None:
    """Run a board: ``runs`` runs, by default endlessly. A failed run is reported, and the next one starts.

    Raises: ServerUnavailable, ServerRefused if the server has no model after ``STARTUP_S``.
    """
    import torch

    from wattune.job.run import run
    from wattune.remote import Client
    from wattune.workloads.example import Digits

    torch.set_num_threads(1)
    # Data of the built-in example that only this "device" has.
    data = Digits(classes=(5, 6, 7, 8, 9), invert=True, noise=0.3)()
    is_starting = retry_if_exception_type((ServerUnavailable, ServerRefused))
    with Client(url, backoff_s=()) as server:
        waiting = Retrying(retry=is_starting, stop=stop_after_delay(STARTUP_S), wait=wait_fixed(0.5), reraise=True)
        waiting(server.model, MODEL)
    turns = count() if runs is None else range(runs)
    for turn, cap_w in zip(turns, cycle(board.caps_w), strict=False):
        more: dict[str, Any] = {"strategy": "full" if turn == 0 else None, "seed": turn, "device_name": board.name}
        more["output"] = folder / f"{turn}-{time.time_ns()}"
        try:
            run(board.device, server=url, model=MODEL, data=data, cap_w=cap_w, **more)
        except WattuneError as error:
            print(f"wattune demo: {board.name}: {error}", file=sys.stderr)
        time.sleep(PAUSE_S if runs is None else 0)


def main(url: str, board: DemoBoard, folder: str) -> None:
    """Run a board in a process of its own, which ends with the process that started it."""
    _end_with_parent()
    os.nice(10)  # below the server, its workers and the browser
    os.environ["XDG_CACHE_HOME"] = folder  # what a device keeps does not belong in the user's own folders
    try:
        play(url, board, Path(folder, board.name))
    except WattuneError as error:
        print(f"wattune demo: {board.name}: {error}", file=sys.stderr)


def _end_with_parent() -> None:
    """Let this process end with the server, also if the server is killed, and not at Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal goes to all processes: the server ends this one
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
