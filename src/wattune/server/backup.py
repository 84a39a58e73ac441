"""Backup and restore of a store as one file: a copy of the database by its own tool, and the files.

A backup is a tar archive of ``files/SHA256`` and, last, the database, ``sqlite/SHA256`` or ``postgresql/SHA256``: all
content is named by its hash. It is consistent even if the server is running: the copy of the database is a snapshot,
and a file never changes.
"""

from __future__ import annotations

import lzma
import os
import re
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import inspect, text

from wattune.errors import InputError, OutputError, RecordError
from wattune.files import parts, sha256_of
from wattune.server.settings import sqlite_file, sqlite_url
from wattune.server.store import Database, FileStore, StoreUnavailable
from wattune.server.store.database import revisions

DAMAGED = (tarfile.TarError, EOFError, UnicodeDecodeError, zlib.error, lzma.LZMAError)
"""Errors from reading a damaged archive, possibly a compressed one; some damage raises an OSError without errno."""

_FILES = text("SELECT sha256 FROM files ORDER BY sha256")


def backup(store: Path, database: Database, target: Path) -> int:
    """Write the archive ``target`` of a store with any schema that this version knows; return the number of its files.

    Raises: OutputError if it exists or cannot be written, or if a file of the store is damaged; RecordError if the
    schema is unknown; InputError without ``pg_dump``; StoreUnavailable.
    """
    database.known_revision()
    files = FileStore(store / "files")
    with _new_file(target) as temporary, tempfile.TemporaryDirectory(dir=target.absolute().parent) as folder:
        copy = Path(folder, "database")
        hashes = copy_database(database, copy)
        with tarfile.open(temporary, "w") as archive:
            for sha256 in hashes:
                archive.add(files.checked(sha256), f"files/{sha256}")
            # It comes last: what was cut off has no database.
            archive.add(copy, f"{database.engine.dialect.name}/{sha256_of(copy)}")
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


def restore(source: Path, store: Path, database_url: str | None = None) -> int:
    """Create the folder ``store`` from an archive; return the number of its files. All hashes are verified.

    ``database_url``: an empty database of PostgreSQL for a backup of one; None for a backup of SQLite. An incomplete
    store is removed. The schema stays that of the backup.

    Raises: OutputError if the folder is not empty; InputError if the database is not empty or of another kind;
    RecordError if the archive is damaged; StoreUnavailable.
    """
    if store.exists() and (not store.is_dir() or any(store.iterdir())):
        raise OutputError("the folder is not empty", value=str(store), hint="choose another one")
    had_folder = store.exists()
    try:
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tarfile.open(source) as archive:
            return _restore(archive, store, database_url)
    except BaseException as error:
        shutil.rmtree(store, ignore_errors=True)
        if had_folder:
            with suppress(OSError):
                store.mkdir(mode=0o700)
        if isinstance(error, DAMAGED) or (isinstance(error, OSError) and error.errno is None):
            raise RecordError(
                f"{source} is not a complete backup", value=str(error), hint="use another backup"
            ) from error
        if isinstance(error, OSError):
            raise OutputError(f"cannot restore {source}", value=error.strerror or str(error)) from error
        raise


def _restore(archive: tarfile.TarFile, store: Path, database_url: str | None) -> int:
    files, copies = FileStore(store / "files"), {}
    for member in archive:
        match = re.fullmatch("(sqlite|postgresql|files)/([0-9a-f]{64})", member.name)
        if match and member.isreg():
            if files.write_parts(_content(archive, member))[0] != match[2]:
                raise RecordError(f"{member.name} of the backup is damaged", hint="use another backup")
            if match[1] != "files":
                copies[match[1]] = files.path(match[2])
    if len(copies) != 1:
        hint = "use another backup, or restore an older one with the version of wattune that wrote it"
        raise RecordError("the backup has no database", hint=hint)
    ((kind, copy),) = copies.items()
    if (kind == "sqlite") != (database_url is None):
        allowed = "no --database" if kind == "sqlite" else "--database with the URL of an empty database"
        raise InputError("the backup is of another kind of database", value=kind, allowed=allowed)
    database = Database(database_url or sqlite_url(store.absolute()))
    try:
        if kind == "postgresql":
            _fill(database, copy)
            copy.unlink()
        else:
            copy.chmod(0o600)
            copy.rename(sqlite_file(store))
        with database.session(reads_only=True) as session:
            hashes = list(session.scalars(_FILES))
    finally:
        database.close()
    if missing := next((sha256 for sha256 in hashes if not files.holds(sha256)), None):
        raise RecordError("the backup is not complete", value=f"files/{missing} is missing", hint="use another backup")
    return len(hashes)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    file = archive.extractfile(member)
    assert file is not None  # it is a regular file
    try:
        yield from parts(file)
    except OSError as error:  # from the archive, not from the file being written
        raise RecordError(
            "the backup is damaged", value=f"{member.name}: {error}", hint="use another backup"
        ) from error


def _fill(database: Database, dump: Path) -> None:
    with database.session(reads_only=True) as session:
        if tables := inspect(session.connection()).get_table_names():
            raise InputError("--database", value=f"it is not empty: {tables[0]}", allowed="an empty database")
    options = ("--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction")
    _run(database, "pg_restore", *options, str(dump))


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
    """Create a file whose name it gets when it is complete; nothing is overwritten. Raises: OutputError."""
    temporary = None
    try:
        if target.exists():
            raise FileExistsError
        with tempfile.NamedTemporaryFile(dir=target.absolute().parent, prefix=".backup-", delete=False) as file:
            temporary = Path(file.name)
            yield temporary
            os.fsync(file.fileno())
        try:
            os.link(temporary, target)  # unlike a rename, it does not replace a file that was created meanwhile
        except FileExistsError:
            raise
        except OSError:  # file systems of USB sticks have no hard links
            os.rename(temporary, target)
    except FileExistsError as error:
        raise OutputError("file exists", value=str(target), hint="choose another name") from error
    except OSError as error:
        raise OutputError(f"cannot write {target}", value=error.strerror or str(error)) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
