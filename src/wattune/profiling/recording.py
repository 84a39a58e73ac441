"""Profiles of replayed tables: the cells of a table are all that can be measured."""

from __future__ import annotations

from collections.abc import Sequence

from wattune.errors import RecordError
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.profiling.rows import rows_of
from wattune.records import ProfileKey, ProfileTable
from wattune.workloads import Workload

HELD = ("model", "input_shape", "data_type", "optimizer", "algorithm")
"""Fields of the key that a recording must share. It stands for the device and the software of its time itself."""


def rows_in(table: ProfileTable, workload: Workload | None, key: ProfileKey) -> list[BatchShape]:
    """The shapes of this workload that the table has; all of the table's without a workload.

    Raises: RecordError if the table was recorded of something else, or has none of the workload's batch sizes.
    """
    recorded = table.key or key.model_copy(update={"algorithm": table.algorithm})
    differences = recorded.differences(key.model_copy(update={f: getattr(recorded, f) for f in _free()}))
    if differences:
        raise RecordError("the recording is of something else, it differs in", value=", ".join(differences))
    shapes = {cell.shape for cell in table.cells}
    if workload is None:
        return sorted(shapes)
    rows = [row for row in rows_of(workload, key.algorithm) if row in shapes]
    if not rows:
        raise RecordError(
            "the recording has no batch size of this workload",
            value=", ".join(str(b) for b in workload.batch_sizes),
            allowed=", ".join(str(b) for b in table.batch_sizes),
        )
    return rows


def absent_points(
    table: ProfileTable, rows: Sequence[BatchShape], settings: Sequence[Knobs]
) -> frozenset[OperatingPoint]:
    """The points that the table does not have. A shape that did not fit in memory does not fit at any setting."""
    points = {cell.point for cell in table.cells}
    unfit = {cell.shape for cell in table.cells if cell.out_of_memory}
    every = (OperatingPoint(row, knobs) for row in rows if row not in unfit for knobs in settings)
    return frozenset(point for point in every if point not in points)


def _free() -> list[str]:
    return [field for field in ProfileKey.model_fields if field not in HELD]
