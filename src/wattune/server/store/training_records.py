"""Records of finished training runs, and idempotent requests: a repeated key gets the stored response.

The response is stored in the same transaction as the action itself, so either both or neither are committed.
Source: IETF draft-ietf-httpapi-idempotency-key-header.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from wattune.records import TrainingRecord
from wattune.records.served import digest
from wattune.server.store.schema import AnswerRow, TrainingRow, insert_new, newest


def listing(
    session: Session,
    *,
    device: str | None = None,
    model: str | None = None,
    limit: int = 50,
    before: str | None = None,
) -> list[dict[str, Any]]:
    """List training runs without their records, newest first. ``before``: only those that follow this id.

    Raises: InputError if ``before`` does not exist.
    """
    query = select(TrainingRow.id, TrainingRow.device, TrainingRow.model_name.label("model"), TrainingRow.created_s)
    if device is not None:
        query = query.where(TrainingRow.device == device)
    if model is not None:
        query = query.where(TrainingRow.model_name == model)
    query = newest(session, query, TrainingRow, what="training", limit=limit, before=before)
    return [dict(row) for row in session.execute(query).mappings()]


def get(session: Session, training_id: str) -> dict[str, Any] | None:
    """Read the stored JSON of a record; None if there is none."""
    return session.execute(select(TrainingRow.record).where(TrainingRow.id == training_id)).scalar()


def add(session: Session, record: TrainingRecord, device: str, model: str | None, now_s: float) -> tuple[str, bool]:
    """Store a record; return its id, a hash of the record alone, and True if it is new.

    If the record exists already, the first copy is kept, even if device or token differ.
    """
    content = record.dump()
    training_id = digest(content)[:32]
    values = {"id": training_id, "device": device, "model_name": model, "record": content, "created_s": now_s}
    return training_id, insert_new(session, TrainingRow, values)


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
