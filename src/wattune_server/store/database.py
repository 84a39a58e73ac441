"""Database of a store: SQLite in the store's folder, or PostgreSQL by its URL."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from pydantic_core import from_json, to_json
from sqlalchemy import Engine, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    InterfaceError,
    InternalError,
    NoSuchModuleError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, sessionmaker

from wattune.errors import InputError, RecordError, WattuneError
from wattune_server.store.schema import Base

BUSY_S = 10.0
"""Timeout in seconds of a writer that waits for other writers of an SQLite file."""

MIGRATIONS = Path(__file__).with_name("migrations")
"""Folder of the Alembic migrations."""

POOL = 10
"""Pool size: connections to PostgreSQL that a process keeps open."""


POSTGRESQL = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
"""Connection and keepalive timeouts in seconds, except ``tcp_user_timeout`` in ms, that detect a dead peer."""


VERSION_TABLE = "alembic_version"
"""Table with the revision of the schema, which each store has."""


class StoreUnavailable(WattuneError):
    """The database is unreachable, busy, read-only or full; try again later."""


class Database:
    """The engine, its sessions and its migrations. Raises: InputError for a URL that cannot be used."""

    def __init__(self, url: str):
        self.url = url
        self.engine = _engine(url)
        self._writer = threading.Lock() if self.is_sqlite else None
        self._path = Path(self.engine.url.database) if self.is_sqlite and self.engine.url.database else None
        self._file: os.stat_result | None = None
        self._writing = sessionmaker(self.engine, expire_on_commit=False)
        self._reading = sessionmaker(self.engine.execution_options(reads_only=True), expire_on_commit=False)

    @property
    def is_sqlite(self) -> bool:
        """True if the database is an SQLite file."""
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def session(self, *, reads_only: bool = False) -> Iterator[Session]:
        """Open a transaction: committed at the end, rolled back on an error. ``reads_only``: do not wait for writers.

        Raises: StoreUnavailable if the database is unreachable, locked for too long, read-only or full.
        """
        try:
            with (
                nullcontext() if reads_only or self._writer is None else self._writing_alone(self._writer),
                (self._reading if reads_only else self._writing).begin() as session,
            ):
                yield session
        except (OperationalError, InterfaceError, InternalError) as error:
            raise StoreUnavailable(f"the database does not respond: {_reason(error)}") from error
        except PoolTimeout as error:
            raise StoreUnavailable("the database does not respond: all connections are in use") from error
        except DBAPIError as error:
            # SQLite raises the base class itself if the file is damaged.
            if error.connection_invalidated or type(error) is DatabaseError:
                raise StoreUnavailable(f"the database connection was lost: {_reason(error)}") from error
            raise

    @contextmanager
    def _writing_alone(self, lock: threading.Lock) -> Iterator[None]:
        """Serialize the writers of this process to an SQLite file.

        SQLite's own busy handler polls with growing pauses, so an unlucky writer waits for seconds; a lock is fair.
        """
        if not lock.acquire(timeout=BUSY_S):
            raise StoreUnavailable(f"the database does not respond: the tables have been locked for {BUSY_S:g} s")
        try:
            self._check_present()
            yield
        finally:
            lock.release()

    def _check_present(self) -> None:
        """Refuse to write to an SQLite file that was removed: the system would accept it, and forget it at the end."""
        if self._path is not None and self._file is not None:
            try:
                is_ours = os.path.samestat(os.stat(self._path), self._file)
            except OSError:
                is_ours = False
            if not is_ours:
                raise StoreUnavailable("the database file was removed or replaced")

    def upgrade(self) -> None:
        """Create the tables, or migrate those of an older version. Raises: as ``known_revision``."""
        is_new = self.known_revision() is None
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        try:
            with self.engine.begin() as connection:
                config.attributes["connection"] = connection
                names = set(inspect(connection).get_table_names())
                if is_new and VERSION_TABLE not in names:  # the migrations are for older stores alone
                    if foreign := sorted(names & Base.metadata.tables.keys()):
                        # Another program's, or those of a restore that was cut off.
                        raise StoreUnavailable(
                            f"the database has tables of these names, but not of a store: {', '.join(foreign)}; give "
                            "an empty database"
                        )
                    Base.metadata.create_all(connection)
                    command.stamp(config, "head")
                else:
                    command.upgrade(config, "head")
        except DatabaseError as error:
            raise StoreUnavailable(f"the database does not respond: {_reason(error)}") from error
        if self._path is not None:
            # Write only to the file that there is now, should it be removed or replaced.
            self._file = os.stat(self._path)

    def known_revision(self) -> str | None:
        """Revision of the schema; None if there are no tables.

        Raises: RecordError if this version does not know it; StoreUnavailable.
        """
        with self.session(reads_only=True) as session:
            revision = MigrationContext.configure(session.connection()).get_current_revision()
        if revision is not None and revision not in (known := revisions()):
            raise RecordError(
                f"the store belongs to {'an older' if revision < known[0] else 'a newer'} version of wattune",
                value=f"schema {revision}",
                allowed=", ".join(reversed(known)),
                hint="use that version, or restore a backup of this one",
            )
        return revision

    def check_schema(self, *, makes: bool = False) -> None:
        """Check that the tables have the schema of this version. ``makes``: create them in an empty database.

        Only a server migrates a store: an older one may be running on it.

        Raises: RecordError for another version; StoreUnavailable.
        """
        revision = self.known_revision()
        if revision is None and makes:
            self.upgrade()
            return
        if revision != (head := revisions()[0]):
            raise RecordError(
                "schema version of the store", value=revision, allowed=head, hint="start its server once to migrate it"
            )

    def ping(self) -> None:
        """Check that the database responds and, if it is a file, is still there. Raises: StoreUnavailable."""
        self._check_present()
        with self.session(reads_only=True) as session:
            session.execute(text("SELECT 1"))

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def revisions() -> list[str]:
    """Revisions of the schema that this version knows, newest first."""
    return [script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()]


def _engine(url: str) -> Engine:
    # Records are tens of kilobytes, and this codec is three times as fast as the standard library's.
    codec: dict[str, Any] = {"json_serializer": lambda value: to_json(value).decode(), "json_deserializer": from_json}
    try:
        address = make_url(url)
        if address.get_backend_name() == "sqlite":
            engine = create_engine(url, connect_args={"timeout": BUSY_S}, **codec)
            event.listen(engine, "connect", _on_connect)
            event.listen(engine, "begin", _on_begin)
            return engine
        if address.drivername == "postgresql+psycopg":
            return create_engine(
                url,
                pool_size=POOL,
                max_overflow=POOL,
                pool_pre_ping=True,
                connect_args=POSTGRESQL,
                **codec,
            )
    except (ArgumentError, NoSuchModuleError, ValueError):
        # Show neither the URL nor the driver's message: both may contain a password.
        raise InputError("--database is not a valid URL", allowed="postgresql+psycopg://USER@HOST/NAME") from None
    raise InputError("--database", value=address.drivername, allowed="postgresql+psycopg://USER@HOST/NAME")


def _on_connect(connection: object, record: object) -> None:
    # The driver begins transactions too late for BEGIN IMMEDIATE; `_on_begin` does it instead.
    connection.isolation_level = None  # type: ignore[attr-defined]
    cursor = connection.cursor()  # type: ignore[attr-defined]
    # FULL: with WAL, NORMAL may lose commits from the moments before a power cut, and a device deletes an upload from
    # its outbox as soon as the server has acknowledged it.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _on_begin(connection: object) -> None:
    # IMMEDIATE: otherwise a transaction that reads and then writes fails at once if another one writes in between.
    reads_only = connection.get_execution_options().get("reads_only")  # type: ignore[attr-defined]
    connection.exec_driver_sql("BEGIN" if reads_only else "BEGIN IMMEDIATE")  # type: ignore[attr-defined]


def _reason(error: DBAPIError) -> str:
    return " ".join(str(error.orig).split())[:200]
