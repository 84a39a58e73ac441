"""Records of finished training runs. The id of a record is a hash of its content, so a repeated upload is one row."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from wattune.point import KNOBS
from wattune.records import TrainingRecord
from wattune.records.served import digest
from wattune_server.store.schema import TrainingRow, insert_new


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
    return training_id, insert_new(session, TrainingRow, {**values, **figures(record, model)})


def figures(record: TrainingRecord, model: str | None) -> dict[str, Any]:
    """Columns of a row that are read from its record, so that lists and comparisons need no whole record.

    ``workload``: the model of the server or, without one, the workload as the device calls it, in 64 characters.
    """
    plan, workload = record.plan, model or record.plan.workload
    return {
        "workload": None if workload is None else workload[:64],
        "kind": record.provenance.kind,
        "ended": record.ended or ("target reached" if record.reached else "target not reached"),
        **{name: getattr(plan, name) for name in ("batch_size", "micro_batch_size", *KNOBS, "cap_w")},
        **{name: getattr(record, name) for name in ("samples", "time_s", "energy_j")},
        **{name: getattr(record, name) for name in ("power_mean_w", "power_peak_w", "above_cap_s")},
    }
