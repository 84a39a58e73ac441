"""Answers that are given again when the same request comes again, by its idempotency key.

The answer is kept in the transaction of what was done: both or neither.
Source: IETF draft-ietf-httpapi-idempotency-key-header.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from sqlalchemy import delete
from sqlalchemy.orm import Session

from wattune.records.served import digest
from wattune.server.store.inserting import insert_new
from wattune.server.store.tables import AnswerRow

KEPT_S = 90 * 24 * 3600.0
"""How long an answer is kept: a device that was away for longer than that delivers twice."""


def once(
    session: Session, key: list[str], request: str, act: Callable[[], tuple[int, dict[str, Any]]], now_s: float
) -> tuple[int, dict[str, Any], bool] | None:
    """Do ``act`` unless it was done for this key, and give its status and body, and whether they are those of before.

    Whoever asks at the same moment waits for the first to be done. None where ``request`` is another than it was for
    this key.
    """
    name, request_sha256 = digest(key), hashlib.sha256(request.encode()).hexdigest()
    session.execute(delete(AnswerRow).where(AnswerRow.created_s < now_s - KEPT_S))
    values = {"key": name, "request_sha256": request_sha256, "status": 0, "body": {}, "created_s": now_s}
    if insert_new(session, AnswerRow, values):
        row = session.get_one(AnswerRow, name)
        row.status, row.body = act()
        return row.status, row.body, False
    row = session.get_one(AnswerRow, name)
    return None if row.request_sha256 != request_sha256 else (row.status, row.body, True)
