"""The server's process: one per store, its API here, its workers as children, from the first signal to the last."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from sqlalchemy import select, text

from wattune.errors import InputError, Interrupted, OutputError
from wattune.server import logs
from wattune.server.app import create_app
from wattune.server.jobs.leases import release_all
from wattune.server.jobs.supervisor import Supervisor
from wattune.server.settings import Settings, is_loopback
from wattune.server.store import Database, FileStore, tokens
from wattune.server.store.tables import JobRow

SHUTDOWN_S = 5
"""How long requests may still take after a signal."""

DEMO_S = 24 * 3600.0
"""How long the token of the demo's devices is good: also where the server is killed and cannot revoke it."""

_LOCK = 0x7761747475  # "wattu"
_LOCK_S = 10.0

Say = Callable[[str], None]


def serve(settings: Settings, *, say: Say, demo: bool = False) -> None:
    """Serve until a signal comes: SIGTERM returns, SIGINT raises Interrupted.

    ``say`` is given one line when the server answers. ``demo``: simulated boards use it meanwhile.
    Raises: InputError for a store that another server uses, an address that cannot be listened on, or one that others
    reach while there is no token; OutputError; StoreUnavailable.
    """
    logs.configure()
    with ExitStack() as stack:
        stack.enter_context(_store_locked(settings.store))
        seen = stack.enter_context(_signals())
        database = Database(settings.database_url)
        stack.callback(database.close)
        database.upgrade()
        stack.enter_context(_database_locked(database))
        check_address(settings, database)
        check_tls(settings)
        listening = stack.enter_context(_listening(settings))
        files = FileStore(settings.store / "files")
        _begin(settings, database)
        app = create_app(settings, database, files)
        url = _url(settings, listening)
        supervisor = Supervisor(settings, database)
        app.state.supervisor = supervisor
        stack.enter_context(supervisor)
        if demo:
            stack.enter_context(_demo(url, database))
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # or anybody on this machine could choose the address that counts as his
            lifespan="on",
            ws="none",
            timeout_graceful_shutdown=SHUTDOWN_S,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        server = _Server(config, seen, lambda: say(f"wattune serves {url}, its store is {settings.store}"))
        server.run(sockets=[listening])
    if signal.SIGINT in seen:
        raise Interrupted("interrupted: the server has ended, and what its workers were at goes on at the next start")


def check_address(settings: Settings, database: Database) -> None:
    """Refuse an address that others reach as long as nobody needs a token. Raises: InputError, StoreUnavailable."""
    if is_loopback(settings.host):
        return
    with database.session(reads_only=True) as session:
        if not tokens.any_made(session):
            raise InputError(
                "an address that other machines reach, and no token",
                value=settings.host,
                allowed="127.0.0.1, or tokens",
                hint=f"wattune token make NAME --scope device --store {settings.store}",
            )


def check_tls(settings: Settings) -> None:
    """Raises: InputError for a certificate or key that cannot be used, or one without the other."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise InputError("TLS", allowed="--tls-cert and --tls-key together")
    if settings.tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        allowed = "a certificate and its key as PEM files"
        raise InputError("TLS", value=str(error), allowed=allowed) from error


class _Server(uvicorn.Server):
    """Says when it answers; ends at once where a signal came before it could hear one itself."""

    def __init__(self, config: uvicorn.Config, signals: list[int], started: Callable[[], None]):
        super().__init__(config)
        self._signals, self._started = signals, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.should_exit = self.should_exit or bool(self._signals)
        if not self.should_exit:
            self._started()


@contextmanager
def _store_locked(store: Path) -> Iterator[None]:
    """One server per store; the lock ends with the process, however that ends."""
    try:
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(store / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise OutputError(
            f"cannot write {store}", value=error.strerror or str(error), hint="give another --store"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise InputError("another server uses this store", value=str(store), hint="give another --store") from error
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _database_locked(database: Database) -> Iterator[None]:
    """The same for a database that servers with different folders could share."""
    if database.is_sqlite:
        yield
        return
    with database.engine.connect() as connection:
        # The lock of a server that was killed ends when the database has seen it, moments later.
        until_s = time.monotonic() + _LOCK_S
        while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK}):
            if time.monotonic() > until_s:
                raise InputError("another server uses this database", hint="give another --database")
            time.sleep(0.2)
        connection.commit()  # the lock is the connection's, not the transaction's
        yield


@contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    host = settings.host.strip("[]")
    try:
        family = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM)[0][0]
        found = socket.create_server((host, settings.port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot listen on {settings.host}:{settings.port}", value=reason, hint="give another --port or --host"
        ) from error
    with found:
        yield found


def _url(settings: Settings, listening: socket.socket) -> str:
    host = settings.host.strip("[]")
    shown = f"[{host}]" if ":" in host else host
    return f"http{'s' if settings.has_tls else ''}://{shown}:{listening.getsockname()[1]}"


def _begin(settings: Settings, database: Database) -> None:
    """Nobody works yet: what an earlier server left is given back, and what no job needs any more is removed."""
    with database.session() as session:
        release_all(session, time.time())
        needed = set(session.scalars(select(JobRow.id).where(JobRow.state != "done")))
    work = settings.store / "work"
    for folder in work.iterdir() if work.is_dir() else ():
        if folder.name not in needed:
            shutil.rmtree(folder, ignore_errors=True)
    for left in (settings.store / "files").glob(".incoming-*"):
        left.unlink(missing_ok=True)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals that ended the server; it hears them itself, and raises them again when it is done."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)

    before: dict[int, Any] = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _demo(url: str, database: Database) -> Iterator[None]:
    """Simulated boards as devices of this server, from when it answers until it ends."""
    from wattune.server import demo

    token, name, now_s = None, f"demo-{secrets.token_hex(4)}", time.time()
    with database.session() as session:
        if tokens.any_made(session):
            token = tokens.make(session, name, "device", now_s, now_s + DEMO_S)
    ends = threading.Event()

    def play() -> None:
        with demo.start(url, token):
            ends.wait()

    thread = threading.Thread(target=play, name="wattune-demo")
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()
        if token is not None:
            with database.session() as session:
                tokens.revoke(session, name, time.time())
