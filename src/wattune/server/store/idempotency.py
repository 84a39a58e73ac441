"""Idempotent requests: a repeated request with the same idempotency key gets the stored response.

The response is stored in the same transaction as the action itself, so either both or neither are committed.
Source: IETF draft-ietf-httpapi-idempotency-key-header.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from sqlalchemy import delete
from sqlalchemy.orm import Session

from wattune.records.served import digest
from wattune.server.store.queries import insert_new
from wattune.server.store.schema import AnswerRow

RETENTION_S = 90 * 24 * 3600.0
"""Retention of a response: a device that was offline for longer than this delivers twice."""


def once(
    session: Session, key: list[str], request: str, act: Callable[[], tuple[int, dict[str, Any]]], now_s: float
) -> tuple[int, dict[str, Any], bool] | None:
    """Perform ``act`` once per key; return status, body, and True if they were replayed from an earlier request.

    A concurrent request with the same key waits for the first one to finish. Returns None if the key was used before
    with a different ``request``.
    """
    name, request_sha256 = digest(key), hashlib.sha256(request.encode()).hexdigest()
    session.execute(delete(AnswerRow).where(AnswerRow.created_s < now_s - RETENTION_S))
    values = {"key": name, "request_sha256": request_sha256, "status": 0, "body": {}, "created_s": now_s}
    if insert_new(session, AnswerRow, values):
        row = session.get_one(AnswerRow, name)
        row.status, row.body = act()
        return row.status, row.body, False
    row = session.get_one(AnswerRow, name)
    return None if row.request_sha256 != request_sha256 else (row.status, row.body, True)
