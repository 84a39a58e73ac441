"""Backup of a store as one file: a copy of the database by its own tool, and the files.

A backup is a compressed tar archive with the layout of a store: ``wattune.db`` or ``wattune.dump``, and ``files/``. So
``tar`` restores it, ``gzip -t`` detects damage, and ``pg_restore`` reads the dump. It is consistent even if the server
is running: the copy of the database is a snapshot, and a file never changes.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import text

from wattune.errors import InputError, OutputError
from wattune.files import rename_new
from wattune_server.settings import sqlite_file
from wattune_server.store import Database, FileStore, StoreUnavailable
from wattune_server.store.database import revisions

_FILES = text("SELECT sha256 FROM files ORDER BY sha256")


def backup(store: Path, database: Database, target: Path) -> int:
    """Write the archive ``target`` of a store with any schema that this version knows; return the number of its files.

    Raises: OutputError if it exists or cannot be written, or if a file of the store is damaged; RecordError if the
    schema is unknown; InputError without ``pg_dump``; StoreUnavailable.
    """
    database.known_revision()
    files = FileStore(store / "files")
    with _new_file(target) as temporary:
        copy = temporary.with_name(sqlite_file(store).name if database.is_sqlite else "wattune.dump")
        hashes = copy_database(database, copy)
        copy.chmod(0o600)
        with tarfile.open(temporary, "w:gz", compresslevel=1) as archive:
            archive.add(copy, copy.name)
            for sha256 in hashes:
                path = files.checked(sha256)
                archive.add(path, str(path.relative_to(store)))
    return len(hashes)


def copy_before_migration(store: Path, database: Database) -> Path | None:
    """Copy the database into the store if its schema is an older one; None if there is nothing to migrate.

    Raises: as ``backup``.
    """
    revision = database.known_revision()
    if revision in (None, revisions()[0]):
        return None
    target = store / f"database-{revision}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    with _new_file(target) as temporary:
        copy_database(database, temporary)
    return target


def copy_database(database: Database, target: Path) -> list[str]:
    """Copy a snapshot of the database, without sessions of browsers; return the hashes of the files that it names."""
    if not database.is_sqlite:
        with database.session(reads_only=True) as session:
            session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            snapshot = session.scalar(text("SELECT pg_export_snapshot()"))
            options = ("--format=custom", "--no-owner", "--no-privileges", "--exclude-table-data=sessions")
            _run(database, "pg_dump", *options, f"--snapshot={snapshot}", f"--file={target}")
            return list(session.scalars(_FILES))
    connection = database.engine.raw_connection()  # VACUUM does not run in a transaction
    try:
        connection.cursor().execute("VACUUM INTO ?", (str(target),))
    except sqlite3.Error as error:
        raise StoreUnavailable(f"the database cannot be copied: {error}") from error
    finally:
        connection.close()
    copy = Database(f"sqlite:///{target}")
    try:
        with copy.session() as session:
            session.execute(text("DELETE FROM sessions"))
            return list(session.scalars(_FILES))
    finally:
        copy.close()


def _run(database: Database, tool: str, *arguments: str) -> None:
    """Run a tool of PostgreSQL. The password is in the environment: every local user can read a command line."""
    url = database.engine.url
    address = url.set(drivername="postgresql", password=None).render_as_string(hide_password=False)
    environment = {**os.environ, **({} if url.password is None else {"PGPASSWORD": str(url.password)})}
    command = [tool, f"--dbname={address}", *arguments]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise InputError(f"{tool} is not installed", hint="Debian: apt-get install postgresql-client") from error
    if done.returncode != 0:
        raise StoreUnavailable(f"{tool} failed: {' '.join(done.stderr.split())[:300]}")


@contextmanager
def _new_file(target: Path) -> Iterator[Path]:
    """Create a file, in a folder of its own until it is complete; nothing is overwritten. Raises: OutputError."""
    try:
        if target.exists():
            raise FileExistsError
        with tempfile.TemporaryDirectory(dir=target.absolute().parent, prefix=".backup-") as folder:
            temporary = Path(folder, "complete")
            yield temporary
            temporary.chmod(0o600)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            rename_new(temporary, target)
    except FileExistsError as error:
        raise OutputError("file exists", value=str(target), hint="choose another name") from error
    except OSError as error:
        raise OutputError(f"cannot write {target}", value=error.strerror or str(error)) from error
