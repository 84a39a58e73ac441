"""Dependencies of the server's commands: its packages, and the database of its store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wattune.errors import InputError, OutputError

if TYPE_CHECKING:
    from wattune.server.store import Database


@contextmanager
def server_extra() -> Iterator[None]:
    """A context for imports of the server. Raises: InputError if a package that they need is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "wattune":
            raise
        raise InputError(
            "the server's dependencies are not installed", value=error.name, hint="pip install 'wattune[server]'"
        ) from error


def opened_store(folder: Path, url: str | None, *, makes: bool = False) -> Database:
    """The database of a store; with ``makes`` a missing store is created.

    Raises: InputError if there is no store, or its database is elsewhere and no ``url`` is given; OutputError.
    """
    with server_extra():
        from wattune.server.settings import sqlite_file, sqlite_url
        from wattune.server.store import Database

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
    return Database(url or sqlite_url(folder.absolute()))
