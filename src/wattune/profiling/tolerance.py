"""Exact tables of simulated boards, and of the variants that a board's file allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from wattune.algorithms import open_algorithm
from wattune.devices import Device
from wattune.point import BatchShape, OperatingPoint
from wattune.profiling.rows import rows_of
from wattune.records import ProfileCell, ProfileTable, StepWork, provenance
from wattune.workloads import Workload

DRAWS = 200


def drawn_tables(device: Device, workload: Workload, algorithm: str) -> Iterator[ProfileTable]:
    """One ``exact_table`` for each of ``DRAWS`` variants of the device; none if it has no variants."""
    workload = workload.without_weights()
    variants = device.variants(DRAWS)
    if not variants:
        return
    works = {
        shape: work
        for shape in rows_of(workload, algorithm)
        if (
            work := open_algorithm(algorithm, workload, shape.batch, micro_batch_size=shape.micro).work()
        ).peak_memory_bytes
        <= (device.memory_bytes or 0)
    }
    for seed, variant in enumerate(variants):
        yield exact_table(variant, works, workload=workload.name, algorithm=algorithm, seed=seed)


def exact_table(
    device: Device,
    works: Mapping[BatchShape, StepWork],
    *,
    workload: str,
    algorithm: str,
    seed: int | None = None,
) -> ProfileTable:
    """The table of a simulated board at every setting, for the steps of these batch and micro-batch sizes.

    Time and power are those of the board's formulas: no sensor was read for them, and nothing is rounded; memory is
    that of ``works``. ``workload``, ``algorithm`` and ``seed`` are what the table says that it is of.
    """
    cells = [
        ProfileCell(
            **OperatingPoint(shape, knobs).fields(),
            step_s=step.step_s,
            power_mean_w=step.power_mean_w,
            power_peak_w=step.power_peak_w,
            memory_bytes=work.peak_memory_bytes,
        )
        for shape, work in works.items()
        for knobs, step in device.exact_steps(work).items()
    ]
    return ProfileTable(
        device=device.name,
        workload=workload,
        algorithm=algorithm,
        cells=tuple(cells),
        provenance=provenance("simulated", device=device.name, seed=seed),
    )
