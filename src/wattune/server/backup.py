"""A store in one file and back: rows as JSON by table, so that either database can take them, and files by hash.

A backup is a tar archive of ``tables/NAME.jsonl``, ``files/SHA256`` and, last, ``manifest.json`` with the hash of each
table. It is consistent while the server runs: the rows are of one moment, and a file never changes.
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

from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Table as Columns
from sqlalchemy import insert, inspect, select, text
from sqlalchemy.orm import Session

from wattune.errors import InputError, OutputError, RecordError
from wattune.files import PART_BYTES, parts
from wattune.records.served import SHA256
from wattune.server.settings import sqlite_url
from wattune.server.store import Database, FileStore
from wattune.server.store.database import MIGRATIONS
from wattune.server.store.tables import FileRow, Table, UnitRow
from wattune.version import __version__

FORMAT = "wattune store 1"
ROWS = 500

DAMAGED = (tarfile.TarError, EOFError, UnicodeDecodeError, zlib.error, lzma.LZMAError)
"""What reading a damaged archive raises, also one that somebody compressed; some raise an OSError without a number."""


def backup(store: Path, database: Database, target: Path) -> int:
    """Write the archive ``target``; how many files are in it. Nothing is left of one that could not be finished.

    Raises: OutputError where it is there already or cannot be written, or where a file of the store is damaged;
    RecordError for tables of another version; StoreUnavailable.
    """
    if target.exists():
        raise OutputError("there is a file already", value=str(target), hint="give another name")
    files = FileStore(store / "files")
    with _beside(target) as temporary, database.session(reads_only=True) as session:
        if not database.is_sqlite:  # of SQLite a transaction sees one moment anyway
            session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        revision = _revision(session)
        if revision != _newest():
            raise RecordError("tables of the store", value=revision, allowed=_newest(), hint="start its server once")
        with tarfile.open(temporary, "w") as archive:
            hashes = {table.name: _write_table(archive, session, table) for table in _tables()}
            kept = session.scalars(select(FileRow.sha256).order_by(FileRow.sha256)).all()
            for sha256 in kept:
                with files.checked(sha256).open("rb") as file:
                    _add(archive, f"files/{sha256}", file)
            manifest = {
                "format": FORMAT,
                "revision": revision,
                "software": f"wattune {__version__}",
                "created_s": time.time(),
                "tables": hashes,
                "files": len(kept),
            }
            _add(archive, "manifest.json", io.BytesIO(json.dumps(manifest, indent=1).encode()))
        _name(temporary, target)
    return len(kept)


def restore(source: Path, store: Path, database_url: str | None = None) -> int:
    """Make the folder ``store`` from an archive; how many files it has. Everything is checked against its hash.

    ``database_url``: where the rows go, None: SQLite in the store. Nothing is left of a store that could not be made.

    Raises: OutputError for a folder that is not empty; InputError for a database that is not; RecordError for an
    archive that is damaged, or of another version; StoreUnavailable.
    """
    if store.exists() and (not store.is_dir() or any(store.iterdir())):
        raise OutputError("the folder is not empty", value=str(store), hint="give another one")
    was_there = store.exists()
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
        if was_there:
            with suppress(OSError):
                store.mkdir(mode=0o700)
        if isinstance(error, DAMAGED) or (isinstance(error, OSError) and error.errno is None):
            raise RecordError(f"{source} is no whole backup", value=str(error), hint="take another backup") from error
        if isinstance(error, OSError):
            raise OutputError(f"cannot restore {source}", value=error.strerror or str(error)) from error
        raise


def _restore(archive: tarfile.TarFile, files: FileStore, database: Database) -> int:
    members = {member.name: member for member in archive if member.isreg()}
    manifest = _json(_read(archive, members, "manifest.json"))
    found = (manifest.get("format"), manifest.get("revision")) if isinstance(manifest, dict) else (None, None)
    if found != (FORMAT, _newest()):
        raise RecordError("the backup", value=f"{found[0]}, {found[1]}", allowed=f"{FORMAT}, {_newest()}")
    hashes = manifest.get("tables")
    if not isinstance(hashes, dict):
        raise RecordError("the backup is damaged", value="its manifest names no tables", hint="take another backup")
    database.upgrade()
    with database.session() as session:
        for table in _tables():
            if session.execute(select(table).limit(1)).first() is not None:
                raise InputError("--database", value=f"there are rows in {table.name}", allowed="an empty database")
        for table in _tables():
            name = f"tables/{table.name}.jsonl"
            content = _read(archive, members, name)
            if hashlib.sha256(content).hexdigest() != hashes.get(table.name):
                raise RecordError(f"{name} of the backup is damaged", hint="take another backup")
            _insert(session, table, [_json(line) for line in content.splitlines()])
        if not database.is_sqlite:
            # Rows that came with their numbers have not moved the counter that gives out the next one.
            counter = f"pg_get_serial_sequence('{UnitRow.__tablename__}', 'id')"
            session.execute(text(f"SELECT setval({counter}, (SELECT max(id) FROM {UnitRow.__tablename__}))"))
        wanted = session.scalars(select(FileRow.sha256)).all()
        for sha256 in wanted:
            member = _parts(archive, members, f"files/{sha256}")
            if not re.fullmatch(SHA256, sha256) or files.write_parts(member)[0] != sha256:
                raise RecordError(f"the file {sha256} of the backup is damaged", hint="take another backup")
    return len(wanted)


def _insert(session: Session, table: Columns, rows: list[Any]) -> None:
    columns = {column.name for column in table.columns}
    if any(not isinstance(row, dict) or set(row) != columns for row in rows):
        raise RecordError(f"a row of {table.name} in the backup", allowed=", ".join(sorted(columns)))
    for start in range(0, len(rows), ROWS):
        session.execute(insert(table), rows[start : start + ROWS])


def _write_table(archive: tarfile.TarFile, session: Session, table: Columns) -> str:
    """Add a table to the archive; the SHA-256 of its lines."""
    digest = hashlib.sha256()
    with tempfile.SpooledTemporaryFile(max_size=16 * PART_BYTES) as lines:
        ordered = select(table).order_by(*table.primary_key.columns)
        for row in session.execute(ordered.execution_options(yield_per=ROWS)).mappings():
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
        raise RecordError("the backup is not whole", value=f"{name} is missing", hint="take another backup")
    file = archive.extractfile(members[name])
    assert file is not None  # it is a regular file
    try:
        yield from parts(file)
    except OSError as error:  # not of what is written
        raise RecordError("the backup is damaged", value=f"{name}: {error}", hint="take another backup") from error


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RecordError("the backup is damaged", value=str(error), hint="take another backup") from error


def _tables() -> list[Columns]:
    """Those that others refer to first."""
    return Table.metadata.sorted_tables


def _revision(session: Session) -> str | None:
    connection = session.connection()
    if not inspect(connection).has_table("alembic_version"):
        return None
    return MigrationContext.configure(connection).get_current_revision()


def _newest() -> str | None:
    return ScriptDirectory(str(MIGRATIONS)).get_current_head()


def _name(temporary: Path, target: Path) -> None:
    try:
        # Unlike a rename, it does not replace what came meanwhile.
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:  # a USB stick's file system has no links
        if target.exists():
            raise
        os.rename(temporary, target)


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """A temporary file in the folder of ``target``, gone at the end. Raises: OutputError."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=target.absolute().parent, prefix=".backup-", delete=False) as file:
            temporary = Path(file.name)
        yield temporary
    except FileExistsError as error:
        raise OutputError("there is a file already", value=str(target), hint="give another name") from error
    except OSError as error:
        raise OutputError(f"cannot write {target}", value=error.strerror or str(error)) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
