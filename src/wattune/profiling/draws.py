"""Exact tables of boards that are drawn from the ranges of a simulated board's file."""

from __future__ import annotations

from collections.abc import Iterator

from wattune.algorithms import open_algorithm
from wattune.devices import SimulatedDevice
from wattune.devices.drawing import drawn, exact
from wattune.profiling.rows import rows_of
from wattune.records import ProfileCell, ProfileTable, provenance
from wattune.workloads import Workload

DRAWS = 200


def drawn_tables(device: SimulatedDevice, workload: Workload, algorithm: str) -> Iterator[ProfileTable]:
    """One table of all cells for each of ``DRAWS`` boards; none where the board's file states no range.

    Time and power are those of the board's formulas: no sensor was read for them, and nothing is rounded.
    """
    board = device.board
    if not board.ranges:
        return
    workload = workload.without_weights()
    works = {
        (size, micro): open_algorithm(algorithm, workload, size, micro_batch_size=micro).work()
        for size, micro in rows_of(workload, algorithm)
    }
    for seed in range(DRAWS):
        other = drawn(board, seed)
        cells = [
            ProfileCell(
                batch_size=size,
                micro_batch_size=None if micro == size else micro,
                clock_mhz=clock_mhz,
                step_s=found.step_s,
                power_mean_w=found.power_mean_w,
                power_peak_w=found.power_peak_w,
                memory_bytes=work.peak_memory_bytes,
            )
            for (size, micro), work in works.items()
            if work.peak_memory_bytes <= (device.memory_bytes or 0)
            for clock_mhz, found in exact(other, device.processor, work).items()
        ]
        yield ProfileTable(
            device=device.name,
            workload=workload.name,
            algorithm=algorithm,
            cells=tuple(cells),
            provenance=provenance("simulated", device=device.name, seed=seed),
        )
