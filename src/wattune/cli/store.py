"""``wattune store``: what a server keeps: models added, all of it backed up and restored."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wattune.cli.extras import opened_store, server_extra
from wattune.cli.options import STORE, DatabaseUrl, Store
from wattune.cli.output import emit
from wattune.errors import InputError

store = typer.Typer(add_completion=False, rich_markup_mode=None)

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The store of a server.")]


@store.callback()
def _store() -> None:
    """A server's store: models, backup, restore."""


@store.command()
def add(
    workload: Annotated[Path, typer.Argument(metavar="FILE", help="A workload file with a table [proxy].")],
    store: Store = None,
    database: DatabaseUrl = None,
) -> None:
    """Offer the model of a workload file; what its proxy is trained on goes to the store, its own data does not.

    \b
    Example:  wattune store add workload.toml --store fleet
    """
    with server_extra():
        from wattune.server.adding import add_model, read_offer
        from wattune.server.store import FileStore

    offer = read_offer(workload)
    folder = store or STORE
    opened = opened_store(folder, database, makes=True)
    try:
        opened.upgrade()
        model, is_new = add_model(offer, opened, FileStore(folder / "files"))
    finally:
        opened.close()
    emit(f"{model.model} is on offer{'' if is_new else ', in place of the one before'}")


@store.command()
def backup(
    folder: Folder,
    target: Annotated[Path, typer.Argument(metavar="TARGET.tar", help="The file to write.")],
    database: DatabaseUrl = None,
) -> None:
    """Write all of a store to one file, also while its server runs.

    \b
    Example:  wattune store backup fleet fleet-monday.tar
    """
    opened = opened_store(folder, database)
    try:
        from wattune.server.backup import backup as write

        count = write(folder, opened, target)
    finally:
        opened.close()
    emit(f"{target}: the rows and {count} files of {folder}")


@store.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="SOURCE.tar", help="A backup.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The store to make: a new or empty folder.")],
    database: DatabaseUrl = None,
) -> None:
    """Make a store from a backup, whichever database that was of.

    \b
    Example:  wattune store restore fleet-monday.tar fleet
    """
    with server_extra():
        from wattune.server.backup import restore as read

    if not source.is_file():
        raise InputError("no such backup", value=str(source))
    emit(f"{folder}: the rows and {read(source, folder, database)} files of {source}")
