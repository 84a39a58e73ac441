"""A model for a server from a workload file: its weights and the data of its proxy become files of the store."""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wattune.errors import WorkloadError
from wattune.files import parts
from wattune.records.served import FACTORIES, SOURCES, ServedFile, ServedModel
from wattune.server.jobs.sweep import served_proxy
from wattune.server.store import Database, FileStore, models
from wattune.server.uploads import FileKind, check_file
from wattune.workloads import Data, Workload, load_workload
from wattune.workloads.served import served_model

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Offer:
    """The model of a workload file, before a store has it."""

    path: Path
    workload: Workload
    proxy: Workload
    factory: str
    data: dict[str, Any]
    """The table [proxy.data], as the file has it."""


def read_offer(path: Path) -> Offer:
    """Read a workload file with a table [proxy]. Raises: WorkloadError, InputError for one that cannot be served."""
    workload = load_workload(path)
    with path.open("rb") as file:
        table = tomllib.load(file)
    if workload.proxy is None:
        raise WorkloadError(f"{path.name} has no table [proxy]", hint="the server trains that one, and never the other")
    own = table["model"]
    factory = own if isinstance(own, str) else own["name"]
    if factory not in FACTORIES:
        raise WorkloadError("a server's model", value=factory, allowed=", ".join(FACTORIES))
    workload.proxy.check()
    return Offer(path, workload, workload.proxy, factory, table["proxy"]["data"])


def add_model(offer: Offer, database: Database, files: FileStore) -> tuple[ServedModel, bool]:
    """Put a model on offer; the model, and whether its name is new.

    The data of the proxy goes to the store: as the files that it is read from, or where those are archives, folders
    or from the web, as arrays. The workload's own data does not: it is the devices'. What is offered is what the file
    says, to the last bit, or it is refused.

    Raises: WorkloadError, RecordError, InputError for what cannot be served; OutputError, StoreUnavailable.
    """
    kept = _Kept(files)
    data = _data(offer.proxy, offer.data, offer.path.resolve().parent, kept)
    model = served_model(offer.workload, factory=offer.factory, data=data, weights=_weights(offer.workload, kept))
    proxy = served_proxy(model, files.path, offer.proxy.target)
    if proxy.fingerprint() != offer.proxy.fingerprint():
        raise WorkloadError(f"{offer.path.name} says more of its proxy than a server can", hint="see docs/server.md")
    with database.session() as session:
        for sha256, (kind, size) in kept.rows.items():
            models.add_file(session, sha256, kind, size, time.time())
        return model, models.put(session, model, time.time())


class _Kept:
    """The files of a model, each checked and then in the store."""

    def __init__(self, files: FileStore):
        self._files = files
        self.rows: dict[str, tuple[FileKind, int]] = {}

    def add(self, path: Path, kind: FileKind) -> str:
        check_file(path, kind)
        try:
            with path.open("rb") as file:
                sha256, size = self._files.write_parts(parts(file))
        except OSError as error:
            raise WorkloadError(f"cannot read {path}", value=error.strerror) from error
        self.rows[sha256] = (kind, size)
        return sha256


def _weights(workload: Workload, kept: _Kept) -> ServedFile | None:
    weights = workload.model.weights
    if weights is None:
        return None
    path = Path(weights() if callable(weights) else weights)
    sha256 = kept.add(path, "safetensors")
    return ServedFile(sha256=sha256, bytes=kept.rows[sha256][1])


def _data(proxy: Workload, table: dict[str, Any], folder: Path, kept: _Kept) -> dict[str, Any]:
    source = table["source"]
    named = [key for key in SOURCES.get(source, ()) if key in table]
    if source in SOURCES and all(_is_file(table[key], folder, source) for key in named):
        kind: FileKind = "text" if source == "text" else "npz"
        return {**table, **{key: f"sha256:{kept.add(folder / table[key], kind)}" for key in named}}
    loaded = proxy.loaded
    if not isinstance(loaded, Data):
        raise WorkloadError("data of a server's proxy from loaders", allowed="arrays, or a source of their own")
    found: dict[str, Any] = {"source": "npz"}
    with tempfile.TemporaryDirectory(prefix="wattune-") as temporary:
        for part, (x, y) in (("train", loaded.train), ("test", loaded.test)):
            path = Path(temporary, f"{part}.npz")
            np.savez_compressed(path, inputs=x.numpy(), targets=y.numpy())
            found[part] = f"sha256:{kept.add(path, 'npz')}"
    return found


def _is_file(value: object, folder: Path, source: str) -> bool:
    """Whether it is one file that can go to the store as it is."""
    if not isinstance(value, str) or not (folder / value).is_file():
        return False
    return source != "text" or value.endswith(".txt")
