"""Sessions of browsers that have signed in: a random value in a cookie, of which only the SHA-256 hash is stored."""

from __future__ import annotations

import hashlib
import secrets

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from wattune_server.store.schema import SessionRow

LIFETIME_S = 12 * 3600

MOST_PER_TOKEN = 20
"""Maximum number of sessions of one token; a new one evicts the token's oldest, and nobody else's."""


def begin(session: Session, token: str, now_s: float) -> str:
    """Begin a session for the token with this id; return the value of its cookie."""
    value = secrets.token_urlsafe(32)
    session.execute(delete(SessionRow).where(SessionRow.until_s <= now_s))
    session.add(SessionRow(id=_hash(value), token=token, until_s=now_s + LIFETIME_S))
    session.flush()
    of_token, newest_first = SessionRow.token == token, (SessionRow.until_s.desc(), SessionRow.id)
    newest = select(SessionRow.id).where(of_token).order_by(*newest_first).limit(MOST_PER_TOKEN)
    session.execute(delete(SessionRow).where(of_token, SessionRow.id.not_in(newest)))
    return value


def token(session: Session, value: str, now_s: float) -> str | None:
    """Id of the token behind a session cookie; None if the session is unknown or has expired."""
    row = session.execute(select(SessionRow.token, SessionRow.until_s).where(SessionRow.id == _hash(value))).first()
    # More time than a session has: the clock was set back.
    return row.token if row is not None and 0 < row.until_s - now_s <= LIFETIME_S else None


def end(session: Session, value: str) -> None:
    """End the session of a cookie."""
    session.execute(delete(SessionRow).where(SessionRow.id == _hash(value)))


def _hash(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()
