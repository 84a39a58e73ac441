"""Command ``wattune-server store``: add models to a store, back it up, prune it; and the opening of a store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from wattune import units
from wattune.cli.output import emit
from wattune.errors import InputError, OutputError
from wattune_server import backup as backups
from wattune_server.settings import sqlite_file, sqlite_url
from wattune_server.store import Database, FileStore, retention

Store = Annotated[Path, typer.Option("--store", metavar="DIR", help="The server's store.")]
STORE = Path("wattune-store")
"""Default store."""

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        envvar="WATTUNE_DATABASE",
        help="The server's database: postgresql+psycopg://USER@HOST/NAME (default: SQLite in the store).",
    ),
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Store of a server.")]

store = typer.Typer(add_completion=False, rich_markup_mode=None)


@store.callback()
def _store() -> None:
    """Manage a server's store: add models, back up, remove what is old."""


@store.command()
def add(
    workload: Annotated[Path, typer.Argument(metavar="FILE", help="Workload file with a table [proxy].")],
    store: Store = STORE,
    database: DatabaseUrl = None,
) -> None:
    """Add the model of a workload file. The proxy's data is copied into the store, the workload's own data is not.

    \b
    Example:  wattune-server store add workload.toml --store fleet
    """
    from wattune_server.ingest import add_model, read_model  # imported here: it needs torch

    local = read_model(workload)
    with opened_store(store, database, makes=True) as opened:
        opened.check_schema(makes=True)
        model, is_new = add_model(local, opened, FileStore(store / "files"))
    emit(f"{'added' if is_new else 'replaced'} model {model.model}")


@store.command()
def backup(
    folder: Folder,
    target: Annotated[Path, typer.Argument(metavar="TARGET.tar.gz", help="Backup file to write; must not exist.")],
    database: DatabaseUrl = None,
) -> None:
    """Back up a store to one file, also an older one. The server may be running. Restore it with tar.

    \b
    Example:  wattune-server store backup fleet fleet-monday.tar.gz
              gzip -t fleet-monday.tar.gz && mkdir -m 700 again && tar -xzf fleet-monday.tar.gz -C again
    """
    with opened_store(folder, database) as opened:
        count = backups.backup(folder, opened, target)
    emit(f"{target}: backed up all rows and {count} files of {folder}")


@store.command()
def prune(
    folder: Folder,
    older: Annotated[
        str,
        typer.Option("--older", metavar="TIME", help="Age, e.g. 90d: not seen, made or ended since."),
    ],
    database: DatabaseUrl = None,
) -> None:
    """Remove old devices, profiles, training records, ended jobs, and files that nothing refers to.

    Models, tokens and unfinished jobs are kept. The server may be running.

    \b
    Example:  wattune-server store prune fleet --older 90d
    """
    before_s = time.time() - units.parse(older, "s", name="--older", bare=False)
    with opened_store(folder, database) as opened:
        opened.check_schema()
        with opened.session() as session:
            counts = retention.prune(session, FileStore(folder / "files"), before_s)
    emit(f"{folder}: removed {', '.join(f'{count} {what}' for what, count in counts.items())}")


@contextmanager
def opened_store(folder: Path, url: str | None, *, makes: bool = False) -> Iterator[Database]:
    """Open the database of a store; with ``makes`` a missing store is created.

    Raises: InputError if there is no store, or its database is elsewhere and no ``url`` is given; OutputError.
    """
    if makes and not folder.exists():
        try:
            folder.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise OutputError(f"cannot create {folder}", value=error.strerror) from error
    elif not folder.is_dir() and url is None:
        raise InputError("--store", value=str(folder), allowed="the store of a server")
    # A server ran here and left no database, so it is elsewhere: a new one here would never be used.
    elif url is None and not sqlite_file(folder).is_file() and (not makes or (folder / "lock").exists()):
        raise InputError(
            "no database in the store", value=str(folder), hint="give its URL: --database, WATTUNE_DATABASE"
        )
    database = Database(url or sqlite_url(folder.absolute()))
    try:
        yield database
    finally:
        database.close()
