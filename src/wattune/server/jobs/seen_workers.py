"""Workers on other machines that were seen lately."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from wattune.server.jobs.claims import WorkerDevice
from wattune.server.store.schema import SeenWorkerRow, insert_new

MOST = 1000
"""Maximum number of workers that are known; a new one evicts the least recently seen."""

SEEN_S = 60.0
"""A worker that was seen within this many seconds counts as online; an idle one claims every 20 s."""


class SeenWorker(BaseModel):
    """A worker on another machine. ``unit``: what it holds, None if it is idle; ``seen_s``: seconds since 1970."""

    name: str
    token: str | None
    device: WorkerDevice
    torch: str | None
    unit: str | None
    seen_s: float


def put(session: Session, key: str, worker: SeenWorker) -> None:
    """Add a worker or replace what was known of it. ``key``: the id of its token and its name."""
    values: dict[str, Any] = worker.model_dump()
    if insert_new(session, SeenWorkerRow, {"key": key, **values}):
        newest = select(SeenWorkerRow.key).order_by(SeenWorkerRow.seen_s.desc(), SeenWorkerRow.key)
        session.execute(delete(SeenWorkerRow).where(SeenWorkerRow.key.in_(newest.offset(MOST))))
    else:
        session.execute(update(SeenWorkerRow).where(SeenWorkerRow.key == key).values(**values))


def note(session: Session, key: str, unit: str | None, now_s: float) -> None:
    """Note what a worker holds now; one that is not known stays so until its next claim."""
    session.execute(update(SeenWorkerRow).where(SeenWorkerRow.key == key).values(unit=unit, seen_s=now_s))


def listing(session: Session, now_s: float) -> list[SeenWorker]:
    """List the workers that are online, in order of name."""
    query = select(SeenWorkerRow).where(SeenWorkerRow.seen_s >= now_s - SEEN_S)
    rows = session.scalars(query.order_by(SeenWorkerRow.name, SeenWorkerRow.token))
    return [SeenWorker.model_validate(row, from_attributes=True) for row in rows]
