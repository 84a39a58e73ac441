"""Locks that keep a store and a database to one server, and the watch that ends a server which has lost them."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

from wattune.errors import InputError, OutputError, WattuneError
from wattune.server.store import Database

WATCH_S = 1.0
"""Interval in seconds between looks at the locks."""

_LOCK = 0x7761747475  # "wattu"
_LOCK_S = 10.0

log = logging.getLogger("wattune.server.locks")

Check = Callable[[], None]
"""Function that raises a WattuneError once a lock is lost."""


@contextmanager
def store_locked(store: Path) -> Iterator[Check]:
    """Lock a store for one server; the operating system releases the lock with the process.

    Yields the check that the folder is still
    the one that was locked. Raises: InputError, OutputError.
    """
    path = store / "lock"
    try:
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise OutputError(
            f"cannot write {store}", value=error.strerror or str(error), hint="give another --store"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise InputError("another server uses this store", value=str(store), hint="give another --store") from error

    def check() -> None:
        try:
            is_ours = os.path.samestat(os.stat(path), os.fstat(descriptor))
        except OSError:
            is_ours = False
        if not is_ours:
            raise OutputError("the store was removed, moved or replaced while the server ran", value=str(store))

    try:
        yield check
    finally:
        os.close(descriptor)


@contextmanager
def database_locked(database: Database) -> Iterator[Check]:
    """Lock a PostgreSQL database, which servers with different folders could share.

    Yields the check that the lock is held. PostgreSQL releases it when it restarts or the connection is lost: the check
    takes it again, unless another server has it by then. Raises: InputError.
    """
    if database.is_sqlite:
        yield lambda: None
        return
    held = [database.engine.connect()]

    def check() -> None:
        try:
            held[0].execute(text("SELECT 1"))
            held[0].commit()
        except SQLAlchemyError:
            with suppress(SQLAlchemyError):  # it may be closed already
                held[0].invalidate()
                held[0].close()
            try:
                held[0] = database.engine.connect()
                is_ours = _try_lock(held[0])
            except SQLAlchemyError:  # not back yet; requests are answered with 503 meanwhile
                return
            if not is_ours:
                raise InputError(
                    "another server has taken over this database", hint="give another --database"
                ) from None
            log.warning("the lock on the database was lost and has been taken again")

    try:
        # The database releases the lock of a killed server only once it notices the lost connection.
        retrying = Retrying(
            retry=retry_if_result(lambda is_ours: not is_ours), stop=stop_after_delay(_LOCK_S), wait=wait_fixed(0.2)
        )
        try:
            retrying(_try_lock, held[0])
        except RetryError as error:
            raise InputError("another server uses this database", hint="give another --database") from error
        yield check
    finally:
        held[0].close()


@contextmanager
def watching(checks: list[Check], stop: Callable[[], None]) -> Iterator[None]:
    """Run the checks every ``WATCH_S`` in a thread; at the first failure call ``stop``.

    Raises: that failure, when the context ends.
    """
    ended = threading.Event()
    failures: list[WattuneError] = []

    def watch() -> None:
        while not ended.wait(WATCH_S):
            try:
                for check in checks:
                    check()
            except WattuneError as error:
                log.error("%s", error)
                failures.append(error)
                stop()
                return

    thread = threading.Thread(target=watch, name="wattune-locks", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]


def _try_lock(connection: Connection) -> bool:
    is_ours = bool(connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _LOCK}))
    connection.commit()  # the lock is the connection's, not the transaction's
    return is_ours
