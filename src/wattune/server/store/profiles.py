"""Profiles that devices and makers published, by what they depend on."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from wattune.records import ProfileTable
from wattune.records.served import digest
from wattune.server.store.inserting import insert_new
from wattune.server.store.paging import newest
from wattune.server.store.tables import ProfileRow


def listing(
    session: Session,
    *,
    key: str | None = None,
    board: str | None = None,
    workload: str | None = None,
    algorithm: str | None = None,
    limit: int = 50,
    before: str | None = None,
) -> list[dict[str, Any]]:
    """What there is, without the tables: the newest first. ``key``: ``digest`` of a ``ProfileKey``; ``before``: those
    behind this one. Raises: InputError for a ``before`` that is not there."""
    asked = {"key_sha256": key, "board": board, "workload": workload, "algorithm": algorithm}
    columns = (ProfileRow.id, ProfileRow.board, ProfileRow.workload, ProfileRow.algorithm)
    chosen = select(*columns, ProfileRow.kind, ProfileRow.publisher, ProfileRow.created_s)
    for name, value in asked.items():
        if value is not None:
            chosen = chosen.where(getattr(ProfileRow, name) == value)
    chosen = newest(session, chosen, ProfileRow, what="profile", limit=limit, before=before)
    return [dict(row) for row in session.execute(chosen).mappings()]


def get(session: Session, profile_id: str) -> dict[str, Any] | None:
    """The record as it came; None where there is none."""
    return session.execute(select(ProfileRow.record).where(ProfileRow.id == profile_id)).scalar()


def put(session: Session, profile: ProfileTable, publisher: str, now_s: float) -> tuple[str, bool]:
    """Keep a profile; gives its id, which is of its content, and whether it is new."""
    record = profile.dump()
    profile_id = digest(record)[:32]
    values = {
        "id": profile_id,
        "key_sha256": None if profile.key is None else digest(profile.key.model_dump(mode="json")),
        "board": profile.device,
        "workload": profile.workload,
        "algorithm": profile.algorithm,
        "kind": profile.provenance.kind,
        "publisher": publisher,
        "record": record,
        "created_s": now_s,
    }
    return profile_id, insert_new(session, ProfileRow, values)
