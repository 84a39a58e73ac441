"""Finished training runs as the pages show them, read from the store."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session, defer

from wattune.records import TrainingRecord
from wattune_server.store.schema import TrainingRow


def runs(session: Session, device: str, limit: int) -> tuple[Sequence[TrainingRow], int]:
    """List the newest runs of a device, or with "" of all, without their records; and count all of them."""
    conditions: list[ColumnElement[bool]] = [TrainingRow.device == device] if device else []
    newest = select(TrainingRow).where(*conditions).order_by(TrainingRow.created_s.desc(), TrainingRow.id).limit(limit)
    total = session.scalar(select(func.count()).select_from(TrainingRow).where(*conditions)) or 0
    return session.scalars(newest.options(defer(TrainingRow.record))).all(), total


def training(session: Session, run_id: str) -> tuple[str, str | None, float, TrainingRecord] | None:
    """Read device, model, time of upload and record of a training run; None if there is none."""
    row = session.get(TrainingRow, run_id)
    return None if row is None else (row.device, row.model_name, row.created_s, TrainingRecord.parse(row.record))
