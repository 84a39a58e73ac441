"""Import of models into a store: from a workload file, or the built-in example."""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import select

from wattune.errors import WorkloadError
from wattune.records.served import FACTORIES, SOURCES, ServedFile, ServedModel
from wattune.workloads import Data, Workload, load_workload
from wattune.workloads.example import pretrained
from wattune.workloads.served import served_example, served_model
from wattune_server.jobs.sweep_process import served_proxy
from wattune_server.store import Database, FileStore, model_catalog
from wattune_server.store.schema import ModelRow

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

log = logging.getLogger("wattune_server.ingest")


@dataclass(frozen=True)
class LocalModel:
    """The model of a workload file that is not in a store yet."""

    path: Path
    workload: Workload
    proxy: Workload
    factory: str
    data: dict[str, Any]
    """The table [proxy.data] of the file, unchanged."""


def read_model(path: Path) -> LocalModel:
    """Read a workload file with a table [proxy]. Raises: WorkloadError, InputError if the model cannot be served."""
    workload = load_workload(path)
    with path.open("rb") as file:
        table = tomllib.load(file)
    if workload.proxy is None:
        raise WorkloadError(f"{path.name} has no table [proxy]", hint="the server trains only the proxy")
    model = table["model"]
    factory = model if isinstance(model, str) else model["name"]
    if factory not in FACTORIES:
        raise WorkloadError("model of a server", value=factory, allowed=", ".join(FACTORIES))
    workload.proxy.check()
    return LocalModel(path, workload, workload.proxy, factory, table["proxy"]["data"])


def add_model(local: LocalModel, database: Database, files: FileStore) -> tuple[ServedModel, bool]:
    """Add a model to a store; return the model, and True if its name is new.

    The proxy's data is copied into the store: as the files that it is read from, or as arrays if those are archives,
    folders or downloads. The workload's own data stays with the devices and is not copied. The stored proxy must be
    identical to the one of the file, bit for bit, or the import fails.

    Raises: WorkloadError, RecordError, InputError if the model cannot be served; OutputError, StoreUnavailable.
    """
    sizes: dict[str, int] = {}

    def add(path: Path) -> str:
        try:
            sha256, sizes[sha256] = files.copy(path)
        except OSError as error:
            raise WorkloadError(f"cannot read {path}", value=error.strerror) from error
        return sha256

    data = _data(local.proxy, local.data, local.path.resolve().parent, add)
    source, weights = local.workload.model.weights, None
    if source is not None:
        sha256 = add(Path(source() if callable(source) else source))
        weights = ServedFile(sha256=sha256, bytes=sizes[sha256])
    model = served_model(local.workload, factory=local.factory, data=data, weights=weights)
    proxy = served_proxy(model, files.path, model.proxy.target)
    if proxy.fingerprint() != local.proxy.fingerprint():
        raise WorkloadError(
            f"{local.path.name} uses proxy settings that a server does not support", hint="see docs/server.md"
        )
    with database.session() as session:
        for sha256, size in sizes.items():
            model_catalog.add_file(session, sha256, size, time.time())
        return model, model_catalog.put(session, model, time.time())


def add_example(database: Database, files: FileStore) -> bool:
    """Add the model "resnet8-digits" if the store has no model; True if it was added.

    Trains its weights if they are not in the user's cache: five seconds on one CPU core.

    Raises: StoreUnavailable, OutputError.
    """
    with database.session(reads_only=True) as session:
        if session.scalar(select(ModelRow.name).limit(1)) is not None:
            return False
    weights = pretrained().read_bytes()
    file = ServedFile(sha256=files.write(weights), bytes=len(weights))
    model = served_example(file)
    now_s = time.time()
    with database.session() as session:
        model_catalog.add_file(session, file.sha256, file.bytes, now_s)
        model_catalog.put(session, model, now_s)
    log.info("added the built-in example %s", model.model)
    return True


def _data(proxy: Workload, table: dict[str, Any], folder: Path, add: Callable[[Path], str]) -> dict[str, Any]:
    """Table of the proxy's data in the store; ``add`` copies a file into the store and returns its hash."""
    source = table["source"]
    file_keys = [key for key in SOURCES.get(source, ()) if key in table]
    if source in SOURCES and all(_is_file(table[key], folder, source) for key in file_keys):
        return {**table, **{key: f"sha256:{add(folder / table[key])}" for key in file_keys}}
    if not isinstance(proxy.loaded, Data):
        raise WorkloadError("a server's proxy cannot use data loaders", allowed="arrays, or a data source")
    data: dict[str, Any] = {"source": "npz"}
    with tempfile.TemporaryDirectory(prefix="wattune-") as temporary:
        for part, (x, y) in (("train", proxy.loaded.train), ("test", proxy.loaded.test)):
            path = Path(temporary, f"{part}.npz")
            np.savez_compressed(path, inputs=x.numpy(), targets=y.numpy())
            data[part] = f"sha256:{add(path)}"
    return data


def _is_file(value: object, folder: Path, source: str) -> bool:
    """True if the value names one file that can be copied into the store unchanged."""
    if not isinstance(value, str) or not (folder / value).is_file():
        return False
    return source != "text" or value.endswith(".txt")
