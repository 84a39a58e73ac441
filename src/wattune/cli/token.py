"""Command ``wattune token``: create, list and revoke the access tokens of a server, on its machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattune import units
from wattune.cli.options import STORE, DatabaseUrl, Json, Store
from wattune.cli.output import emit, emit_json, note
from wattune.cli.store import opened_store

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

token = typer.Typer(add_completion=False, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Token name.")]


@token.callback()
def _token() -> None:
    """Manage the access tokens of a server."""


@token.command()
def make(
    name: Name,
    scope: Annotated[
        str,
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help="read: view everything; device: also run jobs and upload records; admin: all, also change models.",
        ),
    ],
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="NAME",
            help="The only device that the token may write for, with --scope device (default: NAME).",
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="Lifetime, e.g. 90d or 12h (default: unlimited).")
    ] = None,
    store: Store = None,
    database: DatabaseUrl = None,
) -> None:
    """Create a token and print it. It is shown only once, because the store keeps only its hash.

    \b
    Example:  wattune token make nano-1 --scope device --device nano-1 --expires 90d --store fleet
    """
    from wattune_server.store import tokens

    tokens.check(name, scope, device)  # before a store is created for it
    now_s = time.time()
    expires_s = None if expires is None else now_s + units.parse(expires, "s", name="--expires", bare=False)
    with _session(store, database, makes=True) as session:
        text = tokens.make(session, name, scope, now_s, expires_s, device=device)
    note("save the token: it is not shown again. Devices read it from WATTUNE_TOKEN or by --set token_file=FILE")
    emit(text)


@token.command("list")
def list_tokens(store: Store = None, database: DatabaseUrl = None, as_json: Json = False) -> None:
    """List the tokens of a server, without their secrets."""
    from wattune_server.store import tokens

    with _session(store, database, reads_only=True) as session:
        rows = tokens.listing(session)
        entries = [
            {
                "name": row.name,
                "scope": row.scope,
                "device": row.device,
                "made": _moment(row.created_s),
                "expires": _moment(row.expires_s),
                "revoked": _moment(row.revoked_s),
            }
            for row in rows
        ]
    if as_json:
        emit_json(entries)
        return
    lines: list[tuple[str, ...]] = [("NAME", "SCOPE", "DEVICE", "MADE", "EXPIRES", "REVOKED")]
    lines += [tuple(text or "-" for text in entry.values()) for entry in entries]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    emit("\n".join(table) if entries else "no tokens: only users of the server's machine have access")


@token.command()
def revoke(name: Name, store: Store = None, database: DatabaseUrl = None) -> None:
    """Revoke a token. The server rejects it within a second."""
    from wattune_server.store import tokens

    with _session(store, database) as session:
        tokens.revoke(session, name, time.time())
    emit(f"revoked {name}")


@contextmanager
def _session(
    store: Path | None, url: str | None, *, makes: bool = False, reads_only: bool = False
) -> Iterator[Session]:
    database = opened_store(store or STORE, url, makes=makes)
    try:
        database.check_schema(makes=makes)
        with database.session(reads_only=reads_only) as session:
            yield session
    finally:
        database.close()


def _moment(moment_s: float | None) -> str | None:
    return None if moment_s is None else datetime.fromtimestamp(moment_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
