"""Exact tables of simulated boards, also of those that are drawn from the ranges of a board's file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from wattune.algorithms import open_algorithm
from wattune.devices import Board, SimulatedDevice
from wattune.devices.board import ProcessorName
from wattune.devices.drawing import drawn, exact
from wattune.profiling.grid import Shape
from wattune.profiling.rows import rows_of
from wattune.records import ProfileCell, ProfileTable, StepWork, provenance
from wattune.workloads import Workload

DRAWS = 200


def drawn_tables(device: SimulatedDevice, workload: Workload, algorithm: str) -> Iterator[ProfileTable]:
    """One ``exact_table`` for each of ``DRAWS`` boards; none where the board's file states no range."""
    board = device.board
    if not board.ranges:
        return
    workload = workload.without_weights()
    works = {
        (size, micro): work
        for size, micro in rows_of(workload, algorithm)
        if (work := open_algorithm(algorithm, workload, size, micro_batch_size=micro).work()).peak_memory_bytes
        <= (device.memory_bytes or 0)
    }
    for seed in range(DRAWS):
        yield exact_table(
            drawn(board, seed),
            works,
            processor=device.processor,
            device=device.name,
            workload=workload.name,
            algorithm=algorithm,
            seed=seed,
        )


def exact_table(
    board: Board,
    works: Mapping[Shape, StepWork],
    *,
    processor: ProcessorName,
    device: str,
    workload: str,
    algorithm: str,
    seed: int | None = None,
) -> ProfileTable:
    """The table of a board at every clock, for the steps of these batch and micro-batch sizes.

    Time and power are those of the board's formulas: no sensor was read for them, and nothing is rounded; memory is
    that of ``works``. ``device``, ``workload``, ``algorithm`` and ``seed`` are what the table says that it is of.
    """
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
        for clock_mhz, found in exact(board, processor, work).items()
    ]
    return ProfileTable(
        device=device,
        workload=workload,
        algorithm=algorithm,
        cells=tuple(cells),
        provenance=provenance("simulated", device=device, seed=seed),
    )
