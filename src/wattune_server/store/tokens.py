"""Access tokens of the form ``wt_ID_SECRET``. The secret is shown once, on creation; only its SHA-256 is stored.

An unsalted hash is sufficient because the secret is 256 random bits.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Literal, NamedTuple

from sqlalchemy import bindparam, exists, func, select
from sqlalchemy.orm import Session

from wattune.errors import InputError, UnknownName
from wattune.records.served import DEVICE_NAME
from wattune_server.store.schema import TokenRow

Scope = Literal["read", "device", "admin"]
SCOPES: dict[Scope, tuple[Scope, ...]] = {
    "read": ("read",),
    "device": ("read", "device"),
    "admin": ("read", "device", "admin"),
}
"""Scopes, and what each includes."""


class Token(NamedTuple):
    """Columns of a token that authentication needs."""

    id: str
    name: str
    scope: Scope
    device: str | None
    secret_sha256: str
    expires_s: float | None
    revoked_s: float | None


# Columns rather than ORM objects: this query runs on every request.
_BY_ID = select(*(getattr(TokenRow, name) for name in Token._fields)).where(TokenRow.id == bindparam("id"))
_PATTERN = re.compile(r"wt_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_NO_HASH = "0" * 64


def check(name: str, scope: str, device: str | None = None) -> None:
    """Check the name, the scope and the device of a new token. Raises: InputError."""
    for what, value in (("token name", name), ("device name", device)):
        if value is not None and not re.fullmatch(DEVICE_NAME, value):
            raise InputError(what, value=value, allowed="up to 64 letters, digits, '.', '_' and '-'")
    if scope not in SCOPES:
        raise UnknownName("scope", scope, SCOPES)
    if device is not None and scope != "device":
        raise InputError("a device name for a token of this scope", value=scope, allowed="device")


def make(
    session: Session,
    name: str,
    scope: str,
    now_s: float,
    expires_s: float | None = None,
    *,
    device: str | None = None,
) -> str:
    """Create a token and return its text. The name of a revoked token can be reused.

    ``device``: the only device that a token of the scope "device" may write for, by default that of the token's name.

    Raises: InputError.
    """
    check(name, scope, device)
    before = session.scalar(select(TokenRow).where(TokenRow.name == name))
    if before is not None:
        if before.revoked_s is None:
            raise InputError("a token with this name exists", value=name, hint=f"wattune-server token revoke {name}")
        session.delete(before)
        session.flush()
    token, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    session.add(
        TokenRow(
            id=token,
            name=name,
            scope=scope,
            device=device or (name if scope == "device" else None),
            secret_sha256=_hash(secret),
            created_s=now_s,
            expires_s=expires_s,
        )
    )
    return f"wt_{token}_{secret}"


def listing(session: Session) -> list[TokenRow]:
    """List all tokens in order of name."""
    return list(session.scalars(select(TokenRow).order_by(TokenRow.name)))


def revoke(session: Session, name: str, now_s: float) -> None:
    """Revoke a token. Raises: UnknownName, which lists the valid tokens."""
    row = session.scalar(select(TokenRow).where(TokenRow.name == name, TokenRow.revoked_s.is_(None)))
    if row is None:
        valid_names = session.scalars(select(TokenRow.name).where(TokenRow.revoked_s.is_(None)))
        raise UnknownName("token", name, valid_names)
    row.revoked_s = now_s


def any_exist(session: Session) -> bool:
    """True if a token was ever created, including expired and revoked ones: authentication is never switched off."""
    return bool(session.scalar(select(exists().select_from(TokenRow))))


def state(session: Session) -> tuple[object, ...]:
    """Summary of all tokens, which is different after each change."""
    counts = func.count(), func.count(TokenRow.revoked_s), func.sum(TokenRow.created_s)
    return tuple(session.execute(select(*counts)).one())


def find(session: Session, content: str, now_s: float) -> Token | str:
    """Find a token by its text, or return the reason for rejecting it. Compares the secret in constant time."""
    match = _PATTERN.fullmatch(content)
    row = None if match is None else _token(session, match[1])
    is_equal = hmac.compare_digest(_hash(match[2] if match else ""), _NO_HASH if row is None else row.secret_sha256)
    return rejection(row, now_s) or row if row is not None and is_equal else "no such token"


def find_id(session: Session, token: str, now_s: float) -> Token | str:
    """Find the token of a browser session by its id, or return the reason for rejecting it."""
    row = _token(session, token)
    return "no such token" if row is None else rejection(row, now_s) or row


def rejection(token: Token, now_s: float) -> str | None:
    """Reason for rejecting a token; None if it is valid."""
    if token.revoked_s is not None:
        return "the token was revoked"
    return "the token has expired" if token.expires_s is not None and token.expires_s <= now_s else None


def _token(session: Session, token: str) -> Token | None:
    row = session.execute(_BY_ID, {"id": token}).first()
    return None if row is None else Token(*row)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
