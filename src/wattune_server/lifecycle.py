"""Start and stop of the server: one per store, with the API in its process and sweeps as processes."""

from __future__ import annotations

import logging
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import uvicorn
from sqlalchemy import select

from wattune.errors import InputError, Interrupted
from wattune_server import connections, logs
from wattune_server.application import create_app
from wattune_server.backup import copy_before_migration
from wattune_server.jobs.runners import Runners
from wattune_server.locks import database_locked, store_locked
from wattune_server.settings import Settings, is_loopback, sqlite_file, sqlite_url
from wattune_server.store import Database, FileStore, tokens
from wattune_server.store.schema import JobRow

SHUTDOWN_S = 5
"""Timeout in seconds of open requests after a signal."""

log = logging.getLogger("wattune_server.lifecycle")

Say = Callable[[str], None]


def serve(settings: Settings, *, say: Say, demo: bool = False) -> None:
    """Serve until a signal arrives: SIGTERM returns, SIGINT raises Interrupted.

    ``say`` is called with the address when the server is ready. ``demo``: simulated boards use the server meanwhile.

    Raises: InputError if another server uses the store, the address cannot be bound, or it is reachable from other
    machines without a proxy or without a token; OutputError; StoreUnavailable.
    """
    logs.configure()
    with ExitStack() as stack:
        signals = stack.enter_context(_noting_signals())
        # What can be refused without the store comes first, so that no folder is left behind.
        _check_proxy(settings)
        listening = stack.enter_context(_listening(settings))
        if not sqlite_file(settings.store).exists() and settings.database_url == sqlite_url(settings.store):
            check_address(settings, None)
        stack.enter_context(store_locked(settings.store))
        database = Database(settings.database_url)
        stack.callback(database.close)
        database.ping()
        keep_lock = stack.enter_context(database_locked(database))
        if (copy := copy_before_migration(settings.store, database)) is not None:
            log.warning("the database is migrated to a newer schema; a copy of it as it was: %s", copy)
        database.upgrade()
        check_address(settings, database)
        _clean_up(settings, database)
        url = _url(settings, listening)
        stack.enter_context(Runners(settings, database, keep_lock))
        if demo:
            stack.enter_context(_demo(url))
        ready = f"wattune is serving on {url}, store: {settings.store}"
        if demo:
            ready += (
                "\nOpen the address in a browser: the boards show their first figures in about a minute. Ctrl-C stops."
            )
        app = create_app(settings, database, FileStore(settings.store / "files"))
        config = connections.configured(app, settings, timeout_graceful_shutdown=SHUTDOWN_S)
        server = _Server(config, signals, on_start=lambda: say(ready))
        server.run(sockets=[listening])
    if signal.SIGINT in signals:
        raise Interrupted("interrupted: the server has stopped; unfinished jobs resume at the next start")


def _check_proxy(settings: Settings) -> None:
    """Refuse to listen beyond this machine without a reverse proxy: tokens must not cross a network unencrypted."""
    if settings.proxy is None and not is_loopback(settings.host):
        raise InputError(
            "listening on an address that other machines can reach needs a reverse proxy with TLS",
            value=settings.host,
            allowed="127.0.0.1 without --proxy",
            hint="see 'Behind a reverse proxy' in docs/server.md",
        )


def check_address(settings: Settings, database: Database | None) -> None:
    """Refuse to serve behind a proxy without authentication. ``database``: None if it does not exist yet.

    Raises: InputError, StoreUnavailable.
    """
    if settings.proxy is None:
        return
    if database is not None:
        with database.session(reads_only=True) as session:
            if tokens.any_exist(session):
                return
    raise InputError(
        "a server behind a reverse proxy needs a token",
        value=settings.proxy,
        allowed="127.0.0.1 without --proxy if there is no token",
        hint=f"wattune token make NAME --scope device --store {settings.store}",
    )


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    host = settings.host.strip("[]")
    try:
        family = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, settings.port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot listen on {settings.host}:{settings.port}", value=reason, hint="give another --port or --host"
        ) from error
    with listener:
        yield listener


def _url(settings: Settings, listening: socket.socket) -> str:
    host = settings.host.strip("[]")
    url_host = f"[{host}]" if ":" in host else host
    return f"http://{url_host}:{listening.getsockname()[1]}"


def _clean_up(settings: Settings, database: Database) -> None:
    """Remove leftover files of an earlier server, before any sweep starts."""
    with database.session(reads_only=True) as session:
        unfinished = set(session.scalars(select(JobRow.id).where(JobRow.state != "done")))
    work = settings.store / "work"
    for folder in work.iterdir() if work.is_dir() else ():
        if folder.name not in unfinished:
            shutil.rmtree(folder, ignore_errors=True)
    for temporary in (settings.store / "files").glob(".incoming-*"):
        temporary.unlink(missing_ok=True)


@contextmanager
def _demo(url: str) -> Iterator[None]:
    """Run simulated boards as devices of this server until it stops."""
    from wattune_server import demo

    stopping = threading.Event()

    def play() -> None:
        with demo.start(url):
            stopping.wait()

    thread = threading.Thread(target=play, name="wattune-demo")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


@contextmanager
def _noting_signals() -> Iterator[list[int]]:
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
    """Uvicorn server that reports readiness, and stops at once if a signal arrived before its own handlers."""

    def __init__(self, config: uvicorn.Config, signals: list[int], on_start: Callable[[], None]):
        super().__init__(config)
        self._signals, self._on_start = signals, on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.should_exit = self.should_exit or bool(self._signals)
        if not self.should_exit:
            self._on_start()
