"""Profiles and training records of devices. Its id is a hash of a record's content, so a repeated upload is one row."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from wattune.point import KNOBS
from wattune.records import ProfileTable, TrainingRecord
from wattune.records.served import digest
from wattune_server.store.schema import ProfileRow, TrainingRow, insert_new


def get(session: Session, table: type[ProfileRow | TrainingRow], record_id: str) -> dict[str, Any] | None:
    """Read the stored JSON of a record; None if there is none."""
    return session.execute(select(table.record).where(table.id == record_id)).scalar()


def add_profile(session: Session, profile: ProfileTable, publisher: str, now_s: float) -> tuple[str, bool]:
    """Store a profile; return its id, and True if it is new."""
    figures = {
        "board": profile.device,
        "workload": profile.workload,
        "algorithm": profile.algorithm,
        "kind": profile.provenance.kind,
        "publisher": publisher,
    }
    return _add(session, ProfileRow, profile.dump(), now_s, figures)


def add_training(
    session: Session, record: TrainingRecord, device: str, model: str | None, now_s: float
) -> tuple[str, bool]:
    """Store a training record; return its id, and True if it is new.

    If the record exists already, the first copy is kept, even if device or token differ.
    """
    owner = {"device": device, "model_name": model}
    return _add(session, TrainingRow, record.dump(), now_s, {**owner, **figures(record, model)})


def _add(
    session: Session, table: type[ProfileRow | TrainingRow], content: dict[str, Any], now_s: float, more: dict[str, Any]
) -> tuple[str, bool]:
    record_id = digest(content)[:32]
    return record_id, insert_new(session, table, {"id": record_id, "record": content, "created_s": now_s, **more})


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
