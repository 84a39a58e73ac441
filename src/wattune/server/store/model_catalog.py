"""Models that devices can request, and the rows of the files that they need."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from wattune.errors import InputError
from wattune.records.served import OPTION_LIMITS, OPTIONS, SAMPLE_VALUES, ServedModel
from wattune.server.store.schema import FileRow, ModelRow, insert_new


def listing(session: Session, *, after: str = "", limit: int = 100) -> list[ServedModel]:
    """List the models in order of name, starting after the name ``after``."""
    rows = session.scalars(select(ModelRow).where(ModelRow.name > after).order_by(ModelRow.name).limit(limit))
    return [ServedModel.parse(row.record) for row in rows]


def get(session: Session, name: str) -> ServedModel | None:
    """Read a model by name; None if there is none."""
    row = session.get(ModelRow, name)
    return None if row is None else ServedModel.parse(row.record, source=f"the model {name}")


def get_record(session: Session, name: str) -> tuple[dict[str, Any], str] | None:
    """Read the stored JSON of a model and its digest; None if there is none."""
    row = session.execute(select(ModelRow.record, ModelRow.digest).where(ModelRow.name == name)).first()
    return None if row is None else (row.record, row.digest)


def put(session: Session, model: ServedModel, now_s: float) -> bool:
    """Add a model or replace the one of the same name; True if the name is new.

    Raises: InputError if its factory has no such option, a size is too large, or a file that it needs is missing or of
    another kind.
    """
    _check_sizes(model)
    _check_files(session, model)
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


def add_file(session: Session, sha256: str, kind: str, size: int, now_s: float) -> bool:
    """Add the row of a file; True if it is new. Raises: InputError if the same file exists as another kind."""
    if insert_new(session, FileRow, {"sha256": sha256, "kind": kind, "bytes": size, "created_s": now_s}):
        return True
    row = session.get_one(FileRow, sha256)
    if row.kind != kind:
        raise InputError(f"file {sha256} already exists on the server as another kind", value=row.kind, allowed=kind)
    return False


def _check_sizes(model: ServedModel) -> None:
    # Not in the record itself: models that an earlier version has accepted can still be read.
    options = OPTIONS[model.factory]
    for name, value in model.options.items():
        if name not in options:
            raise InputError(f"option of {model.factory}", value=name, allowed=", ".join(options))
        most = OPTION_LIMITS.get(name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value is not None and (is_number if most is None else not is_number):
            raise InputError(f"option {name}", value=value, allowed="a text" if most is None else "a number")
        if most is not None and isinstance(value, (int, float)) and not 0 <= value <= most:
            raise InputError(f"option {name}", value=value, allowed=f"0 to {most}")
    if (size := math.prod(model.input_shape)) > SAMPLE_VALUES:
        raise InputError("input_shape: values of one sample", value=size, allowed=f"at most {SAMPLE_VALUES}")


def _check_files(session: Session, model: ServedModel) -> None:
    kinds = dict.fromkeys(model.proxy.files, "text" if model.proxy.data["source"] == "text" else "npz")
    if model.weights is not None:
        kinds[model.weights.sha256] = "safetensors"
    for sha256, kind in kinds.items():
        row = session.get(FileRow, sha256)
        if row is None:
            raise InputError("file missing on the server", value=sha256, hint=f"PUT /v1/files/{sha256} first")
        if row.kind != kind:
            raise InputError(f"kind of file {sha256}", value=row.kind, allowed=kind)
    weights = model.weights
    if weights is not None and (row := session.get(FileRow, weights.sha256)) and row.bytes != weights.bytes:
        raise InputError("size of the weights in bytes", value=weights.bytes, allowed=str(row.bytes))
