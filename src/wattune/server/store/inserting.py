"""Inserting a row that may be there already, on either database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import inspect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from wattune.server.store.tables import Table


def insert_new(session: Session, table: type[Table], values: dict[str, Any]) -> bool:
    """Insert a row unless its key is there already; whether it was inserted. Where another transaction is about to
    insert it, this waits for that one to end."""
    dialect = session.get_bind().dialect.name
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    # What it returns, since not every driver counts what it inserts.
    key = inspect(table).primary_key[0]
    done = session.execute(insert(table).values(**values).on_conflict_do_nothing().returning(key))
    return done.first() is not None
