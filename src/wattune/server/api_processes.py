"""The API in several processes behind one socket. One that dies is replaced; all of them end with their parent.

The parent binds the socket and all processes accept from it, as those of ``uvicorn --workers`` do. Uvicorn's own
supervisor is not used: it leaves its processes behind if it is killed, and its interface changes between releases.

Workers, locks, migrations and the demo stay with the parent. What the processes share is in the database; limits on
rates, sign-in failures and connections are per process.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from wattune.errors import OutputError, WattuneError
from wattune.server import api_server, logs
from wattune.server.locks import Check, watching
from wattune.server.prometheus import FOLDER
from wattune.server.settings import Settings
from wattune.server.store import Database

POLL_S = 0.1

STOP_S = api_server.SHUTDOWN_S + 5.0
"""Timeout in seconds after which a process that was told to stop is killed."""

log = logging.getLogger("wattune.server.api_processes")


@dataclass(frozen=True)
class _Slot:
    """A process, and the pipe through which it reports that it is ready."""

    process: SpawnProcess
    ready: Connection
    report: Connection

    @property
    def is_ready(self) -> bool:
        return self.ready.poll()

    def close(self) -> None:
        self.process.close()
        self.ready.close()
        self.report.close()


def run(
    settings: Settings,
    listening: socket.socket,
    signals: list[int],
    *,
    on_start: Callable[[], None],
    checks: Sequence[Check],
) -> None:
    """Answer requests in ``settings.api_processes`` processes until a signal arrives or a check fails.

    ``signals``: those noted so far. ``on_start`` is called when all of them can answer requests.

    Raises: OutputError if one of them cannot start at first; the failure of a check.
    """
    stopping, slots, has_started = threading.Event(), list[_Slot](), False
    with _shared_metrics(), watching([*checks], stopping.set):
        try:
            slots += [_start(settings, listening) for _ in range(settings.api_processes)]
            while not signals and not stopping.is_set():
                if not has_started and all(slot.is_ready for slot in slots):
                    has_started = True
                    on_start()
                wait([slot.process.sentinel for slot in slots], POLL_S)
                for index, slot in enumerate(slots):
                    if slot.process.is_alive() or signals:
                        continue
                    if not has_started:
                        raise OutputError("a process of the API did not start", hint="see the server's log")
                    log.warning("a process of the API died and is replaced: exit code %s", slot.process.exitcode)
                    slot.close()
                    slots[index] = _start(settings, listening)
        finally:
            _stop(slots)


def _start(settings: Settings, listening: socket.socket) -> _Slot:
    context = multiprocessing.get_context("spawn")
    ready, report = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(settings, listening, report), name="wattune-api", daemon=True)
    # Ctrl-C in a terminal reaches all processes; these stop when the parent tells them to.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return _Slot(process, ready, report)


def _stop(slots: list[_Slot]) -> None:
    for slot in slots:
        slot.process.terminate()
    until_s = time.monotonic() + STOP_S
    for slot in slots:
        slot.process.join(max(0.0, until_s - time.monotonic()))
        if slot.process.is_alive():
            slot.process.kill()
            slot.process.join()
        slot.close()


def _answer(settings: Settings, listening: socket.socket, report: Connection) -> None:
    """Entry point of a process."""
    logs.configure()
    parent = multiprocessing.parent_process()

    def check_parent() -> None:
        if parent is not None and not parent.is_alive():
            raise OutputError("the server's parent process has died")

    with api_server.noting_signals() as signals, closing(Database(settings.database_url)) as database:
        database.pin_file()
        try:
            api_server.run(
                settings, database, listening, signals, on_start=lambda: report.send(True), checks=[check_parent]
            )
        except WattuneError:  # it is in the log
            sys.exit(1)


@contextmanager
def _shared_metrics() -> Iterator[None]:
    """Have the processes count their requests in files of one folder, so that each of them can report all."""
    with tempfile.TemporaryDirectory(prefix="wattune-metrics-", ignore_cleanup_errors=True) as folder:
        os.environ[FOLDER] = folder
        try:
            yield
        finally:
            del os.environ[FOLDER]
