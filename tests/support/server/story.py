"""A model whose sweep takes seconds, on offer in a store, and training data for a device."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.torch import save
from tests.server.conftest import opened

from wattune.records import TrainingRecord
from wattune.records.served import ServedFile, ServedModel
from wattune.workloads import Workload, load_workload, served_model
from wattune_server.store import model_catalog

ROOT = Path(__file__).parent.parent.parent.parent
SMALL = ROOT / "tests" / "cli" / "small.toml"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
COMMAND = [sys.executable, "-m", "wattune"]
PROXY = {"source": "digits", "size": 16, "classes": [5, 6, 7, 8, 9]}


def small(name: str = "small-digits") -> tuple[ServedModel, bytes]:
    """A small network on handwritten digits, with weights of its own. A sweep of it takes some seconds."""
    work = load_workload(SMALL)
    work = replace(work, name=name, proxy=replace(work.proxy, name=f"{name}-proxy"))
    weights = save(work.model(7).state_dict())
    file = ServedFile(sha256=hashlib.sha256(weights).hexdigest(), bytes=len(weights))
    return served_model(work, factory="small-cnn", data=PROXY, weights=file), weights


def offer(folder: Path, model: ServedModel, weights: bytes) -> None:
    """Put a model into the store of a server that does not run."""
    with opened(folder) as store, store.database.session() as session:
        sha256 = store.files.write(weights)
        model_catalog.add_file(session, sha256, len(weights), time.time())
        model_catalog.put(session, model, time.time())


def but_data(record: TrainingRecord) -> TrainingRecord:
    """The record without the fingerprint of its data, which is keyed where it leaves the device."""
    return record.model_copy(update={"provenance": record.provenance.model_copy(update={"data": None})})


def own_data(path: Path, samples: int | None = None) -> Path:
    """What the device has and nobody else: the digits inverted, with noise."""
    work: Workload = load_workload(SMALL)
    data = work.loaded
    x, y = data.train
    x = np.clip(x.numpy() + np.random.default_rng(3).normal(0, 0.05, x.shape).astype(np.float32), 0, 1)
    np.savez(path, images=x[:samples], labels=y.numpy()[:samples])
    return path
