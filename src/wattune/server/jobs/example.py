"""A store without a model offers the built-in example."""

from __future__ import annotations

import logging
import time

from sqlalchemy import select

from wattune.records.served import ServedFile
from wattune.server.store import Database, FileStore
from wattune.server.store.inserting import insert_new
from wattune.server.store.tables import FileRow, ModelRow
from wattune.workloads.example import pretrained
from wattune.workloads.served import served_example

log = logging.getLogger("wattune.server.jobs.example")


def offer(database: Database, files: FileStore) -> bool:
    """Offer "resnet8-digits" where nothing is offered yet; whether it was. Raises: StoreUnavailable, OutputError.

    Its weights are trained where they are not in the user's cache: five seconds of one CPU core.
    """
    with database.session(reads_only=True) as session:
        if session.scalar(select(ModelRow.name).limit(1)) is not None:
            return False
    weights = pretrained().read_bytes()
    file = ServedFile(sha256=files.write(weights), bytes=len(weights))
    model = served_example(file)
    now_s = time.time()
    with database.session() as session:
        values = {"sha256": file.sha256, "kind": "safetensors", "bytes": file.bytes, "created_s": now_s}
        insert_new(session, FileRow, values)
        values = {"name": model.model, "record": model.dump(), "digest": model.digest}
        is_new = insert_new(session, ModelRow, {**values, "created_s": now_s, "updated_s": now_s})
    if is_new:
        log.info("the built-in example %s is on offer", model.model)
    return is_new
