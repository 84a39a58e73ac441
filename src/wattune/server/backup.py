"""Backup and restore of a store as one file: rows as JSON by table, portable between databases, and files by hash.

A backup is a tar archive of ``tables/NAME.jsonl``, ``files/SHA256`` and, last, ``manifest.json`` with the hash of each
table. It is consistent even if the server is running: the rows are a snapshot, and a file never changes.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import re
import shutil
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

from sqlalchemy import MetaData, column, insert, inspect, select
from sqlalchemy import Table as Columns
from sqlalchemy import table as light_table
from sqlalchemy.orm import Session

from wattune.errors import InputError, OutputError, RecordError
from wattune.files import PART_BYTES, parts
from wattune.records.served import SHA256
from wattune.server.settings import sqlite_url
from wattune.server.store import Database, FileStore
from wattune.server.store.database import migrate, revisions
from wattune.server.store.schema import Base, FileRow
from wattune.version import __version__

FORMAT = "wattune store 1"
ROWS = 500

DAMAGED = (tarfile.TarError, EOFError, UnicodeDecodeError, zlib.error, lzma.LZMAError)
"""Errors from reading a damaged archive, possibly a compressed one; some damage raises an OSError without errno."""


def backup(store: Path, database: Database, target: Path) -> int:
    """Write the archive ``target``; return the number of its files. An unfinished archive is removed.

    Raises: OutputError if it exists or cannot be written, or if a file of the store is damaged; RecordError if the
    schema has another version; StoreUnavailable.
    """
    if target.exists():
        raise OutputError("file exists", value=str(target), hint="choose another name")
    files = FileStore(store / "files")
    database.check_schema()
    with _temporary_beside(target) as temporary, database.session(reads_only=True) as session:
        if not database.is_sqlite:  # SQLite transactions are snapshots anyway
            session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        with tarfile.open(temporary, "w") as archive:
            hashes = {table.name: _write_table(archive, session, table) for table in _tables()}
            file_hashes = session.scalars(select(FileRow.sha256).order_by(FileRow.sha256)).all()
            for sha256 in file_hashes:
                with files.checked(sha256).open("rb") as file:
                    _add(archive, f"files/{sha256}", file)
            manifest = {
                "format": FORMAT,
                "revision": revisions()[0],
                "software": f"wattune {__version__}",
                "created_s": time.time(),
                "tables": hashes,
                "files": len(file_hashes),
            }
            _add(archive, "manifest.json", io.BytesIO(json.dumps(manifest, indent=1).encode()))
        _publish(temporary, target)
    return len(file_hashes)


def restore(source: Path, store: Path, database_url: str | None = None) -> int:
    """Create the folder ``store`` from an archive; return the number of its files. All hashes are verified.

    ``database_url``: database for the rows; None means SQLite in the store. An incomplete store is removed.

    Raises: OutputError if the folder is not empty; InputError if the database is not empty; RecordError if the archive
    is damaged or has another version; StoreUnavailable.
    """
    if store.exists() and (not store.is_dir() or any(store.iterdir())):
        raise OutputError("the folder is not empty", value=str(store), hint="choose another one")
    had_folder = store.exists()
    try:
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        database = Database(database_url or sqlite_url(store.absolute()))
        try:
            with tarfile.open(source) as archive:
                return _restore(archive, FileStore(store / "files"), database)
        finally:
            database.close()
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


def _restore(archive: tarfile.TarFile, files: FileStore, database: Database) -> int:
    members = {member.name: member for member in archive if member.isreg()}
    manifest = _json(_read(archive, members, "manifest.json"))
    version = (manifest.get("format"), manifest.get("revision")) if isinstance(manifest, dict) else (None, None)
    if version[0] != FORMAT or version[1] not in revisions():
        raise RecordError(
            "version of the backup", value=f"{version[0]}, {version[1]}", allowed=f"{FORMAT}, {revisions()[0]}"
        )
    hashes = manifest.get("tables")
    if not isinstance(hashes, dict):
        raise RecordError("the backup is damaged", value="its manifest lists no tables", hint="use another backup")
    database.upgrade()
    with database.session() as session:
        for table in _tables():
            if session.execute(select(table).limit(1)).first() is not None:
                raise InputError("--database", value=f"table {table.name} is not empty", allowed="an empty database")
        # The tables as they were at that version, and then migrated as any older store.
        if version[1] != revisions()[0]:
            migrate(session.connection(), version[1])
        for table in (*_tables(), *_former_tables(session)):
            if not inspect(session.connection()).has_table(table.name):  # it was added since
                continue
            name = f"tables/{table.name}.jsonl"
            content = _read(archive, members, name)
            if hashlib.sha256(content).hexdigest() != hashes.get(table.name):
                raise RecordError(f"{name} of the backup is damaged", hint="use another backup")
            _insert(session, table, [_json(line) for line in content.splitlines()])
        migrate(session.connection())
        file_hashes = session.scalars(select(FileRow.sha256)).all()
        for sha256 in file_hashes:
            member = _parts(archive, members, f"files/{sha256}")
            if not re.fullmatch(SHA256, sha256) or files.write_parts(member)[0] != sha256:
                raise RecordError(f"the file {sha256} of the backup is damaged", hint="use another backup")
    return len(file_hashes)


def _former_tables(session: Session) -> list[Columns]:
    """Tables of an older version whose rows the migration takes over into others."""
    if not inspect(session.connection()).has_table("units"):
        return []
    return [Columns("units", MetaData(), autoload_with=session.connection())]


def _insert(session: Session, table: Columns, rows: list[Any]) -> None:
    names = {column["name"] for column in inspect(session.connection()).get_columns(table.name)}
    if any(not isinstance(row, dict) or set(row) != names for row in rows):
        raise RecordError(f"a row of {table.name} in the backup", allowed=", ".join(sorted(names)))
    present = light_table(table.name, *(column(c.name, c.type) for c in table.columns if c.name in names))
    for start in range(0, len(rows), ROWS):
        session.execute(insert(present), rows[start : start + ROWS])


def _write_table(archive: tarfile.TarFile, session: Session, table: Columns) -> str:
    """Add a table to the archive; return the SHA-256 of its lines."""
    digest = hashlib.sha256()
    with tempfile.SpooledTemporaryFile(max_size=16 * PART_BYTES) as lines:
        query = select(table).order_by(*table.primary_key.columns)
        for row in session.execute(query.execution_options(yield_per=ROWS)).mappings():
            line = json.dumps(dict(row), allow_nan=False, separators=(",", ":")).encode() + b"\n"
            digest.update(line)
            lines.write(line)
        _add(archive, f"tables/{table.name}.jsonl", cast(BinaryIO, lines))
    return digest.hexdigest()


def _add(archive: tarfile.TarFile, name: str, content: BinaryIO) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = content.seek(0, os.SEEK_END)
    entry.mode, entry.mtime = 0o600, int(time.time())
    content.seek(0)
    archive.addfile(entry, content)


def _read(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], name: str) -> bytes:
    return b"".join(_parts(archive, members, name))


def _parts(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], name: str) -> Iterator[bytes]:
    if name not in members:
        raise RecordError("the backup is not complete", value=f"{name} is missing", hint="use another backup")
    file = archive.extractfile(members[name])
    assert file is not None  # it is a regular file
    try:
        yield from parts(file)
    except OSError as error:  # from the archive, not from the file being written
        raise RecordError("the backup is damaged", value=f"{name}: {error}", hint="use another backup") from error


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RecordError("the backup is damaged", value=str(error), hint="use another backup") from error


def _tables() -> list[Columns]:
    """Tables of a backup in dependency order: a referenced table comes first."""
    return [table for table in Base.metadata.sorted_tables if table.info.get("is_in_backup", True)]


def _publish(temporary: Path, target: Path) -> None:
    try:
        # Unlike a rename, a link does not replace a file that was created meanwhile.
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:  # file systems of USB sticks have no hard links
        if target.exists():
            raise
        os.rename(temporary, target)


@contextmanager
def _temporary_beside(target: Path) -> Iterator[Path]:
    """Create a temporary file in the folder of ``target``, deleted at the end. Raises: OutputError."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=target.absolute().parent, prefix=".backup-", delete=False) as file:
            temporary = Path(file.name)
        yield temporary
    except FileExistsError as error:
        raise OutputError("file exists", value=str(target), hint="choose another name") from error
    except OSError as error:
        raise OutputError(f"cannot write {target}", value=error.strerror or str(error)) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
