"""Command ``wattune-server token``: create, list and revoke the access tokens of a server, on its machine."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Annotated

import typer

from wattune import units
from wattune.cli.options import Json
from wattune.cli.output import emit, emit_json, note
from wattune.reporting.text import table
from wattune_server.cli.store import STORE, DatabaseUrl, Store, opened_store
from wattune_server.store import tokens

Name = Annotated[str, typer.Argument(metavar="NAME", help="Token name.")]

token = typer.Typer(add_completion=False, rich_markup_mode=None)


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
    store: Store = STORE,
    database: DatabaseUrl = None,
) -> None:
    """Create a token and print it. It is shown only once, because the store keeps only its hash.

    \b
    Example:  wattune-server token make nano-1 --scope device --device nano-1 --expires 90d --store fleet
    """
    tokens.check(name, scope, device)  # before a store is created for it
    now_s = time.time()
    expires_s = None if expires is None else now_s + units.parse(expires, "s", name="--expires", bare=False)
    with opened_store(store, database, makes=True) as opened:
        opened.check_schema(makes=True)
        with opened.session() as session:
            text = tokens.make(session, name, scope, now_s, expires_s, device=device)
    note("save the token: it is not shown again. Devices read it from WATTUNE_TOKEN or by --set token_file=FILE")
    emit(text)


@token.command("list")
def list_tokens(
    store: Store = STORE,
    database: DatabaseUrl = None,
    as_json: Json = False,
) -> None:
    """List the tokens of a server, without their secrets."""
    with opened_store(store, database) as opened:
        opened.check_schema()
        with opened.session(reads_only=True) as session:
            entries = [
                {
                    "name": row.name,
                    "scope": row.scope,
                    "device": row.device,
                    "made": _moment(row.created_s),
                    "expires": _moment(row.expires_s),
                    "revoked": _moment(row.revoked_s),
                }
                for row in tokens.listing(session)
            ]
    if as_json:
        emit_json(entries)
        return
    rows = [[text or "-" for text in entry.values()] for entry in entries]
    lines = table(("NAME", "SCOPE", "DEVICE", "MADE", "EXPIRES", "REVOKED"), rows)
    emit(lines if rows else "no tokens: only users of the server's machine have access")


@token.command()
def revoke(name: Name, store: Store = STORE, database: DatabaseUrl = None) -> None:
    """Revoke a token. The server rejects it within a second."""
    with opened_store(store, database) as opened:
        opened.check_schema()
        with opened.session() as session:
            tokens.revoke(session, name, time.time())
    emit(f"revoked {name}")


def _moment(moment_s: float | None) -> str | None:
    return None if moment_s is None else datetime.fromtimestamp(moment_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
