"""Locks that keep a store and a database to one server."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from wattune.errors import InputError, OutputError
from wattune_server.store import Database, StoreUnavailable

_LOCK = 0x7761747475  # "wattu"
_LOCK_S = 10.0


@contextmanager
def store_locked(store: Path) -> Iterator[None]:
    """Lock a store for one server; the operating system releases the lock with the process.

    Raises: InputError, OutputError.
    """
    try:
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = (store / "lock").open("a")
    except OSError as error:
        raise OutputError(
            f"cannot write {store}", value=error.strerror or str(error), hint="give another --store"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError("another server uses this store", value=str(store), hint="give another --store") from error
        yield


@contextmanager
def database_locked(database: Database) -> Iterator[Callable[[], None]]:
    """Lock a PostgreSQL database, which servers with different folders could share. Raises: InputError.

    Gives a function to call now and then: it takes the lock again if the database has lost it with its connections.
    It raises InputError if another server has the lock, and StoreUnavailable.
    """
    if database.is_sqlite:
        yield lambda: None
        return
    with database.engine.connect() as connection:

        def keep() -> None:
            try:
                is_ours = connection.scalar(select(func.pg_try_advisory_lock(_LOCK)))
                connection.commit()  # the lock is the connection's, not the transaction's
            except SQLAlchemyError as error:
                connection.invalidate()
                connection.rollback()  # the next call connects again
                raise StoreUnavailable("the database does not respond: its lock is taken again once it does") from error
            if not is_ours:
                raise InputError("another server uses this database", hint="give another --database")

        # The database releases the lock of a killed server only once it notices the lost connection.
        is_taken, until = retry_if_exception_type(InputError), stop_after_delay(_LOCK_S)
        Retrying(retry=is_taken, stop=until, wait=wait_fixed(0.2), reraise=True)(keep)
        yield keep
