"""Start and stop of the server process: one per store, with the API in it and the workers as child processes."""

from __future__ import annotations

import logging
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
from types import FrameType
from typing import Any

import uvicorn
from sqlalchemy import select

from wattune.errors import InputError, Interrupted
from wattune.server import connections, logs
from wattune.server.application import create_app
from wattune.server.jobs.leases import release_local
from wattune.server.jobs.supervisor import Supervisor
from wattune.server.locks import Check, database_locked, store_locked, watching
from wattune.server.settings import Settings, is_loopback, sqlite_file, sqlite_url
from wattune.server.store import Database, FileStore, tokens
from wattune.server.store.schema import JobRow

SHUTDOWN_S = 5
"""Timeout in seconds of open requests after a signal."""

DEMO_S = 24 * 3600.0
"""Lifetime of the token for the demo's devices, in case the server is killed and cannot revoke it."""

log = logging.getLogger("wattune.server.lifecycle")

Say = Callable[[str], None]


def serve(settings: Settings, *, say: Say, demo: bool = False) -> None:
    """Serve until a signal arrives: SIGTERM returns, SIGINT raises Interrupted.

    ``say`` is called with the address when the server is ready. ``demo``: simulated boards use the server meanwhile.

    Raises: InputError if another server uses the store, the address cannot be bound, or it is reachable from other
    machines and no token exists; OutputError, also if the store vanishes meanwhile; StoreUnavailable.
    """
    logs.configure()
    with ExitStack() as stack:
        signals = stack.enter_context(_signals())
        # What can be refused without the store comes first, so that no folder is left behind.
        check_tls(settings)
        listening = stack.enter_context(_listening(settings))
        if not sqlite_file(settings.store).exists() and settings.database_url == sqlite_url(settings.store):
            check_address(settings, None)
        check_store = stack.enter_context(store_locked(settings.store))
        database = Database(settings.database_url)
        stack.callback(database.close)
        database.upgrade()
        check_database = stack.enter_context(database_locked(database))
        check_address(settings, database)
        files = FileStore(settings.store / "files")
        _clean_up(settings, database)
        app = create_app(settings, database, files)
        url = _url(settings, listening)
        supervisor = Supervisor(settings, database)
        app.state.supervisor = supervisor
        stack.enter_context(supervisor)
        if demo:
            stack.enter_context(_demo(url, database))
        config = connections.configured(
            app,
            connections.fitting(settings.limits),
            # Without a proxy, any local user could forge the client address.
            proxy_headers=settings.proxy is not None,
            forwarded_allow_ips=settings.proxy,
            timeout_graceful_shutdown=SHUTDOWN_S,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        ready = f"wattune is serving on {url}, store: {settings.store}"
        if demo:
            ready += (
                "\nOpen the address in a browser: the boards show their first figures in about a minute. Ctrl-C stops."
            )

        def end_waits() -> None:
            app.state.job_watch.close()
            app.state.unit_watch.close()

        server = _Server(config, signals, lambda: say(ready), end_waits)
        with watching([check_store, check_database, _certificate_check(settings, config)], server.stop):
            server.run(sockets=[listening])
    if signal.SIGINT in signals:
        raise Interrupted("interrupted: the server has stopped; unfinished jobs resume at the next start")


def check_address(settings: Settings, database: Database | None) -> None:
    """Refuse to listen on a public address without authentication. ``database``: None if it does not exist yet.

    Raises: InputError, StoreUnavailable.
    """
    if is_loopback(settings.host) and settings.proxy is None:
        return
    if database is not None:
        with database.session(reads_only=True) as session:
            if tokens.any_exist(session):
                return
    raise InputError(
        "listening on an address that other machines can reach needs a token",
        value=settings.host,
        allowed="127.0.0.1 without a proxy if there is no token",
        hint=f"wattune token make NAME --scope device --store {settings.store}",
    )


def check_tls(settings: Settings) -> None:
    """Check the TLS certificate and its key. Raises: InputError if they are unusable or one of them is missing."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise InputError("TLS needs both --tls-cert and --tls-key")
    if settings.tls_cert is None:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        allowed = "a certificate and its key as PEM files"
        raise InputError("TLS", value=str(error), allowed=allowed) from error


def _certificate_check(settings: Settings, config: uvicorn.Config) -> Check:
    """Build a check that loads the certificate again once its files have changed; a bad one is logged, not used."""

    def changes() -> list[float]:
        files = (settings.tls_cert, settings.tls_key)
        return [os.stat(path).st_mtime for path in files if path is not None]

    loaded = changes()

    def check() -> None:
        nonlocal loaded
        try:
            if (now := changes()) == loaded:
                return
            check_tls(settings)
            if config.ssl is not None and settings.tls_cert is not None:
                config.ssl.load_cert_chain(settings.tls_cert, settings.tls_key)
                log.info("the TLS certificate has changed and was loaded again")
            loaded = now
        except (OSError, InputError) as error:
            log.warning("the changed TLS certificate is not used yet: %s", error)

    return check


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
    return f"http{'s' if settings.has_tls else ''}://{url_host}:{listening.getsockname()[1]}"


def _clean_up(settings: Settings, database: Database) -> None:
    """Clean up after an earlier server, before any worker starts: release its units, remove its leftover files."""
    with database.session() as session:
        release_local(session, time.time())
        unfinished = set(session.scalars(select(JobRow.id).where(JobRow.state != "done")))
    work = settings.store / "work"
    for folder in work.iterdir() if work.is_dir() else ():
        if folder.name not in unfinished:
            shutil.rmtree(folder, ignore_errors=True)
    for temporary in (settings.store / "files").glob(".incoming-*"):
        temporary.unlink(missing_ok=True)


@contextmanager
def _signals() -> Iterator[list[int]]:
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


@contextmanager
def _demo(url: str, database: Database) -> Iterator[None]:
    """Run simulated boards as devices of this server until it stops."""
    from wattune.server import demo

    run, now_s, demo_tokens = f"demo-{secrets.token_hex(4)}", time.time(), {}
    with database.session() as session:
        if tokens.any_exist(session):
            demo_tokens = {
                board.name: tokens.make(
                    session, f"{run}-{board.name}", "device", now_s, now_s + DEMO_S, device=board.name
                )
                for board in demo.BOARDS
            }
    stopping = threading.Event()

    def play() -> None:
        with demo.start(url, demo_tokens):
            stopping.wait()

    thread = threading.Thread(target=play, name="wattune-demo")
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        with database.session() as session:
            for board in demo_tokens:
                tokens.revoke(session, f"{run}-{board}", time.time())
