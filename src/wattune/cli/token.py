"""``wattune token``: who may use a server; made, listed and revoked on its machine."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattune.cli.extras import opened_store, server_extra
from wattune.cli.options import STORE, DatabaseUrl, Json, Store
from wattune.cli.output import emit, emit_json, note
from wattune.errors import InputError

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

token = typer.Typer(add_completion=False, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="What it is called: who or what it is for.")]

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@token.callback()
def _token() -> None:
    """Tokens of a server: who may use it."""


@token.command()
def make(
    name: Name,
    scope: Annotated[
        str,
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help="read: look; device: also run jobs and hand in records; admin: also change models.",
        ),
    ],
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="Such as 90d, 12h; by default it never does.")
    ] = None,
    store: Store = None,
    database: DatabaseUrl = None,
) -> None:
    """Make a token, and print it: once, since only a hash of it is kept.

    \b
    Example:  wattune token make lab --scope device --expires 90d --store fleet
    """
    with server_extra():
        from wattune.server.store import tokens

    tokens.check(name, scope)  # before a store is made for it
    now_s = time.time()
    expires_s = None if expires is None else now_s + _seconds(expires)
    with _session(store, database, makes=True) as session:
        text = tokens.make(session, name, scope, now_s, expires_s)
    note("keep it: it is not shown again. A device reads it from WATTUNE_TOKEN, or a file: --token-file")
    emit(text)


@token.command("list")
def list_tokens(store: Store = None, database: DatabaseUrl = None, as_json: Json = False) -> None:
    """The tokens of a server, without their secrets."""
    with server_extra():
        from wattune.server.store import tokens

    with _session(store, database) as session:
        rows = tokens.listing(session)
        shown = [
            {
                "name": row.name,
                "scope": row.scope,
                "made": _moment(row.created_s),
                "expires": _moment(row.expires_s),
                "used": _moment(row.used_s),
                "revoked": _moment(row.revoked_s),
            }
            for row in rows
        ]
    if as_json:
        emit_json(shown)
        return
    lines: list[tuple[str, ...]] = [("NAME", "SCOPE", "MADE", "EXPIRES", "LAST USED", "REVOKED")]
    lines += [tuple(text or "-" for text in one.values()) for one in shown]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    said = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    emit("\n".join(said) if shown else "no tokens: the server is open to the users of its machine, and to nobody else")


@token.command()
def revoke(name: Name, store: Store = None, database: DatabaseUrl = None) -> None:
    """Let a token open nothing any more, within a second."""
    with server_extra():
        from wattune.server.store import tokens

    with _session(store, database) as session:
        tokens.revoke(session, name, time.time())
    emit(f"revoked {name}")


@contextmanager
def _session(store: Path | None, url: str | None, *, makes: bool = False) -> Iterator[Session]:
    database = opened_store(store or STORE, url, makes=makes)
    try:
        database.upgrade()
        with database.session() as session:
            yield session
    finally:
        database.close()


def _seconds(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,5})([smhdw])", text.strip())
    if found is None or int(found[1]) == 0:
        raise InputError("--expires", value=text, allowed="a number and s, m, h, d or w, such as 90d")
    return float(int(found[1]) * _UNITS_S[found[2]])


def _moment(moment_s: float | None) -> str | None:
    return None if moment_s is None else datetime.fromtimestamp(moment_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
