"""The API in one process: the application behind a socket until a signal."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from wattune.server import connections
from wattune.server.application import create_app
from wattune.server.locks import Check, watching
from wattune.server.settings import Settings
from wattune.server.store import Database, FileStore

SHUTDOWN_S = 5
"""Timeout in seconds of open requests after a signal."""

log = logging.getLogger("wattune.server.api_server")


def run(
    settings: Settings,
    database: Database,
    listening: socket.socket,
    signals: list[int],
    *,
    on_start: Callable[[], None],
    checks: Sequence[Check],
) -> None:
    """Answer requests until a signal arrives or a check fails. Call ``Database.upgrade`` first.

    ``signals``: those noted so far. ``on_start`` is called when the first request can be answered.

    Raises: the failure of a check.
    """
    app = create_app(settings, database, FileStore(settings.store / "files"))
    config = connections.configured(app, settings, timeout_graceful_shutdown=SHUTDOWN_S)

    def end_waits() -> None:
        app.state.job_watch.close()

    server = _Server(config, signals, on_start, end_waits)
    with watching([*checks], server.stop):
        server.run(sockets=[listening])


@contextmanager
def noting_signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM; uvicorn handles them itself, and re-raises them on exit."""
    numbers: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        numbers.append(number)

    before: dict[int, Any] = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield numbers
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Server(uvicorn.Server):
    """Uvicorn server that reports readiness, and stops at once if a signal arrived before its own handlers.

    ``on_stop`` is called before it waits for the open requests.
    """

    def __init__(
        self, config: uvicorn.Config, signals: list[int], on_start: Callable[[], None], on_stop: Callable[[], None]
    ):
        super().__init__(config)
        self._signals, self._on_start, self._on_stop = signals, on_start, on_stop

    def stop(self) -> None:
        """Stop as on a signal; may be called from any thread."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.should_exit = self.should_exit or bool(self._signals)
        if not self.should_exit:
            self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stop()
        await super().shutdown(sockets)
