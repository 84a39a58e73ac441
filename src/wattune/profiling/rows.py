"""The shapes that a workload is profiled at with a training algorithm."""

from __future__ import annotations

from wattune.algorithms import takes_micro_batches
from wattune.point import BatchShape
from wattune.profiling.strategies import shapes
from wattune.workloads import Workload


def rows_of(workload: Workload, algorithm: str) -> list[BatchShape]:
    """Every batch size, with each of the workload's micro-batch sizes where the algorithm takes any."""
    return shapes(workload.batch_sizes, workload.micro_batch_sizes if takes_micro_batches(algorithm) else ())
