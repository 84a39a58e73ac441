"""Models that devices can request, and the rows of the files that they need."""

from __future__ import annotations

import logging

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from wattune.errors import RecordError
from wattune.records.served import ServedModel
from wattune_server.store.schema import FileRow, ModelRow, insert_new

_LOG = logging.getLogger("wattune_server.store.model_catalog")


def listing(session: Session, *, limit: int | None = None, factory: str | None = None) -> list[ServedModel]:
    """List the first models, all or those of one ``factory``, in order of name.

    A model that this version cannot read, such as one with a factory of an earlier version, is left out of the list.
    """
    models, rows = [], select(ModelRow).order_by(ModelRow.name).limit(limit)
    if factory is not None:
        rows = rows.where(ModelRow.record["factory"].as_string() == factory)
    for row in session.scalars(rows):
        try:
            models.append(ServedModel.parse(row.record, source=f"the model {row.name}"))
        except RecordError as error:
            _LOG.warning("%s", error)
    return models


def get(session: Session, name: str) -> ServedModel | None:
    """Read a model by name; None if there is none."""
    row = session.get(ModelRow, name)
    return None if row is None else ServedModel.parse(row.record, source=f"the model {name}")


def put(session: Session, model: ServedModel, now_s: float) -> bool:
    """Add a model or replace the one of the same name; True if the name is new. Its files must be in the store."""
    values = {"record": model.dump(), "digest": model.digest, "updated_s": now_s}
    if insert_new(session, ModelRow, {"name": model.model, "created_s": now_s, **values}):
        return True
    session.execute(update(ModelRow).where(ModelRow.name == model.model).values(**values))
    return False


def delete(session: Session, name: str) -> bool:
    """Remove a model; False if there was none. Its files remain, since jobs and other models may need them."""
    row = session.get(ModelRow, name, with_for_update=True)
    if row is None:
        return False
    session.delete(row)
    return True


def add_file(session: Session, sha256: str, size: int, now_s: float) -> None:
    """Add the row of a file, unless it is there."""
    insert_new(session, FileRow, {"sha256": sha256, "bytes": size, "created_s": now_s})
