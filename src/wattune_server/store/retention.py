"""Removal of everything that is older than a given time, with the files that nothing refers to."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CursorResult, delete, select
from sqlalchemy.orm import Session

from wattune.records.served import ServedModel
from wattune_server.store.file_store import FileStore
from wattune_server.store.schema import OPEN, DeviceRow, FileRow, JobRow, ModelRow, ProfileRow, RunRow, TrainingRow


def prune(session: Session, files: FileStore, before_s: float) -> dict[str, int]:
    """Remove devices that were not seen since ``before_s``, and profiles, training records and ended jobs from before.

    Then remove files from before that no model, job or run refers to. Returns the number of each.
    """
    old_jobs = select(JobRow.id).where(JobRow.state.not_in(OPEN), JobRow.finished_s < before_s)
    session.execute(delete(RunRow).where(RunRow.job_id.in_(old_jobs)))
    counts = {
        "jobs": _delete(session, delete(JobRow).where(JobRow.state.not_in(OPEN), JobRow.finished_s < before_s)),
        "devices": _delete(session, delete(DeviceRow).where(DeviceRow.seen_s < before_s)),
        "profiles": _delete(session, delete(ProfileRow).where(ProfileRow.created_s < before_s)),
        "training records": _delete(session, delete(TrainingRow).where(TrainingRow.created_s < before_s)),
    }
    used = set(session.scalars(select(RunRow.curve_sha256)))
    for record in (*session.scalars(select(ModelRow.record)), *session.scalars(select(JobRow.model))):
        used.update(ServedModel.parse(record, source="a model of the store").files)
    unused = set(session.scalars(select(FileRow.sha256).where(FileRow.created_s < before_s))) - used
    for sha256 in unused:
        session.execute(delete(FileRow).where(FileRow.sha256 == sha256))
    session.flush()
    for sha256 in unused:
        files.path(sha256).unlink(missing_ok=True)
    return {**counts, "files": len(unused)}


def _delete(session: Session, statement: Any) -> int:
    result: CursorResult[Any] = session.execute(statement)  # type: ignore[assignment]
    return result.rowcount
