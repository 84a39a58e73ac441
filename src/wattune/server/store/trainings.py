"""Finished trainings."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from wattune.records import TrainingRecord
from wattune.records.served import digest
from wattune.server.store.inserting import insert_new
from wattune.server.store.paging import newest
from wattune.server.store.tables import TrainingRow


def listing(
    session: Session,
    *,
    device: str | None = None,
    model: str | None = None,
    limit: int = 50,
    before: str | None = None,
) -> list[dict[str, Any]]:
    """What there is, without the records: the newest first. ``before``: those behind this one.

    Raises: InputError for a ``before`` that is not there.
    """
    chosen = select(TrainingRow.id, TrainingRow.device, TrainingRow.model_name.label("model"), TrainingRow.created_s)
    if device is not None:
        chosen = chosen.where(TrainingRow.device == device)
    if model is not None:
        chosen = chosen.where(TrainingRow.model_name == model)
    chosen = newest(session, chosen, TrainingRow, what="training", limit=limit, before=before)
    return [dict(row) for row in session.execute(chosen).mappings()]


def get(session: Session, training_id: str) -> dict[str, Any] | None:
    """The record as it came; None where there is none."""
    return session.execute(select(TrainingRow.record).where(TrainingRow.id == training_id)).scalar()


def add(session: Session, record: TrainingRecord, device: str, model: str | None, now_s: float) -> tuple[str, bool]:
    """Keep a training; gives its id, which is of the record alone, and whether it is new. One that comes again, under
    whatever name of the device or with whatever token, stays as it came first."""
    content = record.dump()
    training_id = digest(content)[:32]
    values = {"id": training_id, "device": device, "model_name": model, "record": content, "created_s": now_s}
    return training_id, insert_new(session, TrainingRow, values)
