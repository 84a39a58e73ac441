"""Tokens: ``wt_ID_SECRET``. The secret is told once, when it is made; a SHA-256 of it is kept.

A plain hash is enough: the secret is 256 random bits, which no list of guesses contains.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Literal, NamedTuple

from sqlalchemy import bindparam, exists, select, update
from sqlalchemy.orm import Session

from wattune.errors import InputError, UnknownName
from wattune.records.served import DEVICE_NAME
from wattune.server.store.tables import TokenRow

Scope = Literal["read", "device", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "device", "admin")
"""Ascending: each includes the one before."""


class Token(NamedTuple):
    """What is needed of a token to let somebody in."""

    id: str
    name: str
    scope: Scope
    secret_sha256: str
    expires_s: float | None
    revoked_s: float | None


# Of columns and not of a row's object: it is read at every request.
_BY_ID = select(*(getattr(TokenRow, name) for name in Token._fields)).where(TokenRow.id == bindparam("id"))
_FORM = re.compile(r"wt_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NOBODY = "0" * 64


def check(name: str, scope: str) -> None:
    """Raises: InputError for a name or a scope that no token can have."""
    if not re.fullmatch(DEVICE_NAME, name):
        raise InputError("name of a token", value=name, allowed="up to 64 letters, digits, '.', '_' and '-'")
    if scope not in SCOPES:
        raise UnknownName("scope", scope, SCOPES)


def make(session: Session, name: str, scope: str, now_s: float, expires_s: float | None = None) -> str:
    """Make a token and give its text. The name of a revoked one can be used again. Raises: InputError."""
    check(name, scope)
    before = session.scalar(select(TokenRow).where(TokenRow.name == name))
    if before is not None:
        if before.revoked_s is None:
            raise InputError("there is a token of this name", value=name, hint=f"wattune token revoke {name}")
        session.delete(before)
        session.flush()
    token, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    session.add(
        TokenRow(id=token, name=name, scope=scope, secret_sha256=_hash(secret), created_s=now_s, expires_s=expires_s)
    )
    return f"wt_{token}_{secret}"


def listing(session: Session) -> list[TokenRow]:
    """All of them, by name."""
    return list(session.scalars(select(TokenRow).order_by(TokenRow.name)))


def revoke(session: Session, name: str, now_s: float) -> None:
    """Let a token open nothing any more. Raises: UnknownName, of the names of those that still do."""
    row = session.scalar(select(TokenRow).where(TokenRow.name == name, TokenRow.revoked_s.is_(None)))
    if row is None:
        known = session.scalars(select(TokenRow.name).where(TokenRow.revoked_s.is_(None)))
        raise UnknownName("token", name, known)
    row.revoked_s = now_s


def any_made(session: Session) -> bool:
    """Whether a token was ever made. One that has expired or was revoked counts: nothing opens a server again."""
    return bool(session.scalar(select(exists().select_from(TokenRow))))


def find(session: Session, text: str, now_s: float) -> Token | str:
    """The token of this text, or why there is none. Takes as long for a wrong secret as for a right one."""
    form = _FORM.fullmatch(text)
    row = None if form is None else _token(session, form[1])
    same = hmac.compare_digest(_hash(form[2] if form else ""), _NOBODY if row is None else row.secret_sha256)
    return why_not(row, now_s) or row if row is not None and same else "no such token"


def find_id(session: Session, token: str, now_s: float) -> Token | str:
    """The token of this id, for a session that was begun with it, or why there is none any more."""
    row = _token(session, token)
    return "no such token" if row is None else why_not(row, now_s) or row


def why_not(token: Token, now_s: float) -> str | None:
    """Why a token opens nothing any more; None where it does."""
    if token.revoked_s is not None:
        return "the token was revoked"
    return "the token has expired" if token.expires_s is not None and token.expires_s <= now_s else None


def mark_used(session: Session, used_s: Mapping[str, float]) -> None:
    """Keep when tokens were used last, by their ids."""
    for token, moment_s in used_s.items():
        session.execute(update(TokenRow).where(TokenRow.id == token).values(used_s=moment_s))


def _token(session: Session, token: str) -> Token | None:
    row = session.execute(_BY_ID, {"id": token}).first()
    return None if row is None else Token(*row)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
