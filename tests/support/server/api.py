"""Requests of a client, valid and hostile files, and the state of a whole store to compare with."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from pathlib import Path
from typing import Any

from sqlalchemy import select
from tests.server.conftest import Store
from tests.support import report_records as samples
from tests.support.server import dashboard as made

from wattune.records.served import ServedModel
from wattune_server.store import model_catalog, tokens
from wattune_server.store.schema import Base

READ = "/jobs"
"""A path that whoever may read may read."""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def safetensors(values: int = 4) -> bytes:
    """A file with one tensor of so many numbers, whose bytes differ."""
    size = 4 * values
    header = json.dumps({"weight": {"dtype": "F32", "shape": [values], "data_offsets": [0, size]}}).encode()
    return len(header).to_bytes(8, "little") + header + (bytes(range(251)) * (size // 251 + 1))[:size]


def put_file(store: Store, content: bytes) -> None:
    """A file of a model, as ``wattune-server store add`` copies it."""
    with store.database.session() as session:
        model_catalog.add_file(session, store.files.write(content), len(content), time.time())


def put_model(store: Store, name: str = "m", weights: bytes | None = None, **changes: Any) -> ServedModel:
    """A model, with these weights."""
    if weights is not None:
        put_file(store, weights)
        changes["weights"] = {"sha256": sha256(weights), "bytes": len(weights)}
    served = ServedModel.parse(model(name, **changes))
    with store.database.session() as session:
        model_catalog.put(session, served, time.time())
    return served


def model(name: str = "resnet8-digits", **changes: Any) -> dict[str, Any]:
    """A model as JSON."""
    return ServedModel.parse({**made.MODEL.dump(), "model": name, **changes}).dump()


def profile() -> dict[str, Any]:
    return json.loads(_records()["profile"])


def training() -> dict[str, Any]:
    return json.loads(_records()["training"])


@functools.cache
def _records() -> dict[str, str]:
    # Made once: they say when they were made.
    run = samples.run()
    assert run.training is not None
    every = {"profile": samples.profile(), "training": run.training}
    return {name: json.dumps(record.dump()) for name, record in every.items()}


def status(name: str = "nano-1", **changes: Any) -> dict[str, Any]:
    return made.status(name, **changes).model_dump(mode="json")


def token(
    store: Store, scope: str, name: str | None = None, *, expires_s: float | None = None, device: str | None = None
) -> dict[str, str]:
    """A new token, as the header that shows it."""
    with store.database.session() as session:
        text = tokens.make(session, name or f"{scope}-token", scope, time.time(), expires_s, device=device)
    return {"Authorization": f"Bearer {text}"}


def contents(store: Store) -> dict[str, Any]:
    """Every row of every table, and every file with its hash."""
    found: dict[str, Any] = {}
    with store.database.session(reads_only=True) as session:
        for name, table in Base.metadata.tables.items():
            found[name] = sorted(json.dumps(list(row), sort_keys=True) for row in session.execute(select(table)))
    folder: Path = store.files.folder
    paths = [path for path in folder.rglob("*") if path.is_file()]
    found["the folder"] = sorted((str(path.relative_to(folder)), sha256(path.read_bytes())) for path in paths)
    return found


def problem(answer: Any, status: int) -> dict[str, Any]:
    """The problem that a request was answered with."""
    assert answer.status_code == status, f"{answer.status_code}: {answer.text[:500]}"
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["status"] == status
    assert found["detail"]
    assert found["title"]
    return found
