"""Lists that are read a page at a time, the newest first."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy import Select, select
from sqlalchemy.orm import Session
from typing_extensions import Unpack

from wattune.errors import InputError
from wattune.server.store.tables import JobRow, ProfileRow, TrainingRow

Chosen = TypeVar("Chosen", bound="Select[Unpack[tuple[Any, ...]]]")


def newest(
    session: Session,
    chosen: Chosen,
    table: type[JobRow] | type[ProfileRow] | type[TrainingRow],
    *,
    what: str,
    limit: int,
    before: str | None,
) -> Chosen:
    """The newest ``limit`` rows of ``chosen``, or those that come after the row ``before`` in that order.

    ``what`` the rows are called. Raises: InputError for a ``before`` that is not there.
    """
    if before is not None:
        at = session.execute(select(table.created_s).where(table.id == before)).scalar()
        if at is None:
            raise InputError(f"no such {what}", value=before)
        older = (table.created_s == at) & (table.id < before)
        chosen = chosen.where((table.created_s < at) | older)
    return chosen.order_by(table.created_s.desc(), table.id.desc()).limit(limit)
