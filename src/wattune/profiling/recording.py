"""The profile of a recorded device: what was recorded, since a recording that is measured again says nothing new."""

from __future__ import annotations

from wattune.errors import RecordError
from wattune.profiling.rows import rows_of
from wattune.records import ProfileKey, ProfileTable, provenance
from wattune.workloads import Workload

HELD = ("model", "input_shape", "data_type", "optimizer", "algorithm")
"""Fields of the key that a recording must share. It stands for the device and the software of its time itself."""


def replayed(table: ProfileTable, workload: Workload, key: ProfileKey) -> ProfileTable:
    """The recorded table, cut down to the batch sizes of this workload.

    Its cost is that of the recording.
    Raises: RecordError if it was recorded of something else, or holds none of the workload's batch sizes.
    """
    recorded = table.key or key.model_copy(update={"algorithm": table.algorithm})
    differences = recorded.differences(key.model_copy(update={f: getattr(recorded, f) for f in _free()}))
    if differences:
        raise RecordError("the recording is of something else, it differs in", value=", ".join(differences))
    rows = set(rows_of(workload, key.algorithm))
    cells = tuple(c for c in table.cells if c.shape in rows)
    if not cells:
        raise RecordError(
            "the recording has no batch size of this workload",
            value=", ".join(str(b) for b in workload.batch_sizes),
            allowed=", ".join(str(b) for b in table.batch_sizes),
        )
    aborted = tuple(p for p in table.aborted if p.shape in rows)
    return table.model_copy(
        update={
            "workload": workload.name,
            "cells": cells,
            "aborted": aborted,
            "key": key,
            "provenance": provenance("replayed", device=table.device, model=key.model),
        }
    )


def _free() -> list[str]:
    return [field for field in ProfileKey.model_fields if field not in HELD]
