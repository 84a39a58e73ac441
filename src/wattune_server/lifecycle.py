"""Start and stop of the server: one per store works on sweeps, as processes; on PostgreSQL, others answer calls too."""

from __future__ import annotations

import gc
import logging
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from sqlalchemy import select

from wattune.errors import InputError, Interrupted
from wattune_server import logs
from wattune_server.application import create_app
from wattune_server.backup import copy_before_migration
from wattune_server.connections import Server
from wattune_server.jobs.runners import Runners
from wattune_server.locks import database_locked, store_locked
from wattune_server.settings import Settings, is_loopback, sqlite_file, sqlite_url
from wattune_server.store import Database, FileStore, tokens
from wattune_server.store.schema import JobRow

log = logging.getLogger("wattune_server.lifecycle")

SWITCH_S = 0.0005
"""Time in seconds for which a thread may compute while others wait, in place of the interpreter's 5 ms."""

Say = Callable[[str], None]


def serve(settings: Settings, *, say: Say, is_demo: bool = False) -> None:
    """Serve until a signal arrives: SIGTERM returns, SIGINT raises Interrupted.

    ``say`` is called with the address when the server is ready. ``is_demo``: simulated boards use the server meanwhile.

    Raises: InputError if another server uses the store, the address cannot be bound, or it is reachable from other
    machines without a proxy or without a token; OutputError; StoreUnavailable.
    """
    logs.configure()
    with ExitStack() as stack:
        signals = stack.enter_context(_noting_signals())
        # What can be refused without the store comes first, so that no folder is left behind.
        is_new = not sqlite_file(settings.store).exists() and settings.database_url == sqlite_url(settings.store)
        if settings.proxy is None or is_new:
            check_address(settings, None)
        listening, url = stack.enter_context(_listening(settings))
        database = Database(settings.database_url)
        stack.callback(database.close)
        if database.is_sqlite or settings.workers:
            stack.enter_context(store_locked(settings.store))
            database.ping()
            keep_lock = stack.enter_context(database_locked(database))
            if (copy := copy_before_migration(settings.store, database)) is not None:
                log.warning("the database is migrated to a newer schema; a copy of it as it was: %s", copy)
            database.upgrade()
            check_address(settings, database)
            _clean_up(settings, database)
            if is_demo:
                from wattune_server import demo

                stack.enter_context(demo.start(url, settings.store))
            stack.enter_context(Runners(settings, database, keep_lock, adds_example=not is_demo))
        else:  # it answers calls beside the server that has the workers
            if not settings.store.is_dir():
                raise InputError("--store", value=str(settings.store), allowed="the store of a server with --workers")
            database.check_schema()
            check_address(settings, database)
        ready = f"wattune is serving on {url}, store: {settings.store}"
        if is_demo:
            ready += "\nOpen the address in a browser: the boards show their power once they profile. Ctrl-C stops."
        app = create_app(settings, database, FileStore(settings.store / "files"))
        _answer_promptly()
        Server(app, settings, signals=signals, on_start=lambda: say(ready)).run(sockets=[listening])
    if signal.SIGINT in signals:
        raise Interrupted("interrupted: the server has stopped; unfinished jobs resume at the next start")


def _answer_promptly() -> None:
    """Let the interpreter neither stop all requests at once, nor let one thread wait long for another."""
    # What is loaded by now stays. Each full collection would look at it, for tenths of a second.
    gc.collect()
    gc.freeze()
    # A thread takes the interpreter's lock dozens of times to store a record, each time after this time if others work.
    sys.setswitchinterval(SWITCH_S)


def check_address(settings: Settings, database: Database | None) -> None:
    """Refuse to let other machines in without a reverse proxy, since tokens must not cross a network unencrypted, and
    to serve behind one without a token. ``database``: None if it does not exist yet.

    Raises: InputError, StoreUnavailable.
    """
    if settings.proxy is None and is_loopback(settings.host):
        return
    if settings.proxy is None:
        raise InputError(
            "listening on an address that other machines can reach needs a reverse proxy with TLS",
            value=settings.host,
            allowed="127.0.0.1 without --proxy",
            hint="see 'Behind a reverse proxy' in docs/server.md",
        )
    if database is not None:
        with database.session(reads_only=True) as session:
            if tokens.any_exist(session):
                return
    raise InputError(
        "a server behind a reverse proxy needs a token",
        value=settings.proxy,
        allowed="127.0.0.1 without --proxy if there is no token",
        hint=f"wattune-server token make DEVICE --scope device --store {settings.store}",
    )


@contextmanager
def _listening(settings: Settings) -> Iterator[tuple[socket.socket, str]]:
    """Listen; yield the socket and the URL. Raises: InputError."""
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
        yield listener, f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"


def _clean_up(settings: Settings, database: Database) -> None:
    """Remove leftover files of an earlier server, before any sweep starts."""
    with database.session(reads_only=True) as session:
        unfinished = set(session.scalars(select(JobRow.id).where(JobRow.state != "done")))
    work = settings.store / "work"
    for folder in work.iterdir() if work.is_dir() else ():
        if folder.name not in unfinished:
            shutil.rmtree(folder, ignore_errors=True)
    for temporary in (settings.store / "files").glob("*/.*"):
        temporary.unlink(missing_ok=True)


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
