"""Page of the tokens: an admin lists, makes and revokes them.

It changes nothing without an admin's token: on a server that requires none, every user of its machine could make one
that stays valid, and lock out the others. The first token is made on the command line.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from wattune.errors import InputError, UnknownName
from wattune.server import security
from wattune.server.dashboard.responses import Fields, Key, Name, not_found, respond
from wattune.server.dashboard.views import PAGE_ROWS
from wattune.server.problems import Problem
from wattune.server.store import tokens

router = APIRouter()

Admin = Annotated[security.Identity, Depends(security.require("admin"))]

DAY_S = 86_400.0
MOST_DAYS = 3650
"""Longest lifetime that the form takes, in days."""


@router.get("/tokens")
def list_tokens(request: Request, identity: Admin, find: Key = "") -> Response:
    """List the tokens, without their secrets."""
    return _page(request, identity, find=find)


@router.post("/tokens")
def make_token(request: Request, identity: Admin, fields: Fields) -> Response:
    """Make a token, and show it this once."""
    _check(identity)
    given = {field: fields.get(field, "") for field in ("name", "scope", "device", "days")}
    name, now_s = given["name"], time.time()
    try:
        expires_s = None if not given["days"] else now_s + DAY_S * _days(given["days"])
        with request.app.state.database.session() as session:
            made = tokens.make(session, name, given["scope"], now_s, expires_s, device=given["device"] or None)
    except InputError as error:
        return _page(request, identity, status=422, problem=f"{error}.", given=given)
    return _page(request, identity, status=201, made=made, made_name=name)


@router.post("/tokens/{name}/revoke")
def revoke_token(request: Request, identity: Admin, name: Name) -> Response:
    """Revoke a token."""
    _check(identity)
    try:
        with request.app.state.database.session() as session:
            tokens.revoke(session, name, time.time())
    except UnknownName:
        return not_found(request, "valid token", "/tokens")
    return RedirectResponse("/tokens", 303)


def _check(identity: security.Identity) -> None:
    if identity.token is None:
        hint = "wattune token make NAME --scope admin, on the server's machine"
        raise Problem(403, "tokens are made and revoked by an admin's token", hint=hint)


def _days(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MOST_DAYS):
        raise InputError("days", value=text, allowed=f"1 to {MOST_DAYS}, or nothing")
    return int(text)


def _page(request: Request, identity: security.Identity, *, find: str = "", status: int = 200, **more: Any) -> Response:
    with request.app.state.database.session(reads_only=True) as session:
        rows, total = tokens.page(session, find, PAGE_ROWS)
    values = {"made": None, "made_name": "", "problem": "", "given": {}, **more}
    return respond(
        request,
        "tokens.html",
        section="Tokens",
        status=status,
        tokens=rows,
        total=total,
        find=find,
        scopes=list(tokens.SCOPES),
        may_change=identity.token is not None,
        own=identity.name,
        now_s=time.time(),
        most_days=MOST_DAYS,
        **values,
    )
