"""Published profiles, indexed by their profile key."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from wattune.records import ProfileTable
from wattune.records.served import digest
from wattune_server.store.schema import ProfileRow, insert_new


def listing(session: Session, *, limit: int, key: str | None = None) -> list[dict[str, Any]]:
    """List the newest profiles without their tables. ``key``: ``digest`` of a ``ProfileKey``."""
    columns = (ProfileRow.id, ProfileRow.board, ProfileRow.workload, ProfileRow.algorithm)
    query = select(*columns, ProfileRow.kind, ProfileRow.publisher, ProfileRow.created_s)
    if key is not None:
        query = query.where(ProfileRow.key_sha256 == key)
    query = query.order_by(ProfileRow.created_s.desc(), ProfileRow.id.desc()).limit(limit)
    return [dict(row) for row in session.execute(query).mappings()]


def get(session: Session, profile_id: str) -> dict[str, Any] | None:
    """Read the stored JSON of a profile; None if there is none."""
    return session.execute(select(ProfileRow.record).where(ProfileRow.id == profile_id)).scalar()


def put(session: Session, profile: ProfileTable, publisher: str, now_s: float) -> tuple[str, bool]:
    """Store a profile; return its id, a hash of its content, and True if it is new."""
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
