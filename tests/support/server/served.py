"""Small models as a server offers them, requests for them, and the jobs of a store."""

from __future__ import annotations

import time
from typing import Any

from wattune.records.served import ServedModel, SweepRequest, SweepStatus
from wattune_server.jobs import queue
from wattune_server.store import model_catalog

DIGITS = {"source": "digits", "size": 8, "classes": [5, 6, 7, 8, 9]}


def model(name: str = "digits", **changes: Any) -> ServedModel:
    """A small network without weights of its own; a run of it takes about a second."""
    values: dict[str, Any] = {
        "record": "model",
        "model": name,
        "factory": "small-cnn",
        "options": {"classes": 5, "channels": 1, "width": 4},
        "input_shape": [1, 8, 8],
        "batch_sizes": [8, 16, 32, 64],
        "evaluate_every": 128,
        "budget_samples": 4096,
        "target": 0.8,
        "optimizer": {"learning_rate": 5e-3},
        "proxy": {"data": DIGITS},
    }
    return ServedModel.parse({**values, **changes})


def request(name: str = "digits", **changes: Any) -> SweepRequest:
    """A sweep of every batch size of that model, two seeds each."""
    return SweepRequest.model_validate({"model": name, "strategy": "full", "seeds": 2, **changes})


def pooled(name: str = "digits", **changes: Any) -> SweepRequest:
    """A sweep that chooses its runs itself."""
    return SweepRequest.model_validate({"model": name, **changes})


def submitted(store: Any, asked: SweepRequest | None = None, **changes: Any) -> str:
    """The id of a new job of this model, which is then on offer as well."""
    with store.database.session() as session:
        served = model(**changes)
        model_catalog.put(session, served, 0.0)
        return queue.submit(session, served, asked or request(), time.time())[0].id


def status_of(store: Any, job_id: str) -> SweepStatus:
    """The status of a job."""
    with store.database.session(reads_only=True) as session:
        found = queue.status(session, job_id)
    assert found is not None
    return found
