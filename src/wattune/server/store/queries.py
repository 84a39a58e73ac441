"""Queries that several tables share: insert if absent, and pages of the newest rows."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import Select, inspect, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session
from typing_extensions import Unpack

from wattune.errors import InputError
from wattune.server.store.schema import Base, JobRow, ProfileRow, TrainingRow

Selection = TypeVar("Selection", bound="Select[Unpack[tuple[Any, ...]]]")


def insert_new(session: Session, table: type[Base], values: dict[str, Any]) -> bool:
    """Insert a row unless its key exists; True if it was inserted.

    Waits for another transaction that is inserting the same key.
    """
    dialect = session.get_bind().dialect.name
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    # RETURNING, because not every driver reports the number of inserted rows.
    key = inspect(table).primary_key[0]
    result = session.execute(insert(table).values(**values).on_conflict_do_nothing().returning(key))
    return result.first() is not None


def newest(
    session: Session,
    query: Selection,
    table: type[JobRow] | type[ProfileRow] | type[TrainingRow],
    *,
    what: str,
    limit: int,
    before: str | None,
) -> Selection:
    """Select the newest ``limit`` rows of ``query``, or the ``limit`` rows that follow the row with the id ``before``.

    ``what``: the name of a row in the error message. Raises: InputError if ``before`` does not exist.
    """
    if before is not None:
        created_s = session.execute(select(table.created_s).where(table.id == before)).scalar()
        if created_s is None:
            raise InputError(f"no such {what}", value=before)
        same_moment = (table.created_s == created_s) & (table.id < before)
        query = query.where((table.created_s < created_s) | same_moment)
    return query.order_by(table.created_s.desc(), table.id.desc()).limit(limit)
