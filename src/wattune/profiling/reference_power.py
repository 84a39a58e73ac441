"""Peak power of the fixed set of reference workloads: what a clock that suits any workload is chosen from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.point import BatchShape, OperatingPoint
from wattune.profiling.cell_probe import CellProbe
from wattune.profiling.journal import Journal, JournalEntry, total_cost
from wattune.records import AbortedProbe, ReferencePower, ReferenceSet
from wattune.workloads import REFERENCE_VERSION, Workload, reference_workloads

ALGORITHM = "backprop"
"""Algorithm that trains the reference workloads in every profile."""

STEPS = 1
"""Steps that a reference probe has to measure: its power counts and not its time, so the sensor's windows decide."""


@cache
def references(data_type: str) -> tuple[Workload, ...]:
    """The reference workloads, computing in this data type; kept, since the work of a step is counted once for each."""
    return tuple(replace(workload, data_type=data_type) for workload in reference_workloads())


def climb(
    device: Device,
    workload: Workload,
    notebook: Journal,
    report: Callable[[str, OperatingPoint], None],
    *,
    limit: SensorLimit,
) -> None:
    """Probe a reference workload along each of the device's climbs, up to the first probe that is stopped at the cap;
    with its largest batch size, halved until it fits in memory.

    Source: arXiv 2502.18323, section 4 (Baseline 1: clocks at which the limit holds for any model and batch size).
    """
    batch_size = workload.batch_sizes[-1]
    halved = [batch_size >> i for i in range(batch_size.bit_length())]
    rows = notebook.missing([BatchShape(size, size) for size in halved], workload.name)
    probe = CellProbe(device, workload, ALGORITHM, steps=STEPS, limit=limit, rows=rows, calm=notebook.is_calm(limit))
    for steps in device.climbs():
        left = list(steps)
        while left and batch_size:
            point = OperatingPoint(BatchShape(batch_size, batch_size), left[0])
            report(workload.name, point)
            result = notebook.look_up(workload.name, probe, point)
            if isinstance(result, AbortedProbe):
                break
            if result.out_of_memory:
                batch_size //= 2
            else:
                left.pop(0)


def reference_set(notes: Sequence[JournalEntry]) -> ReferenceSet | None:
    """The peak powers among these notes, and their cost; None if there are none."""
    of_references = [note for note in notes if note.reference is not None]
    powers = tuple(power for note in of_references if (power := _power(note)) is not None)
    cost = total_cost(of_references)
    return ReferenceSet(set_version=REFERENCE_VERSION, powers=powers, cost=cost) if powers else None


_FIGURES = ("power_peak_w", "power_window_w", "power_mean_w", "power_std_w", "step_s", "steps")


def _power(note: JournalEntry) -> ReferencePower | None:
    result, workload = note.result, note.reference
    if workload is None:
        return None
    if isinstance(result, AbortedProbe):
        figures = {"power_peak_w": result.power_w, "stopped": True}
    elif result.out_of_memory:
        return None
    else:
        figures = {name: getattr(result, name) for name in _FIGURES}
    return ReferencePower(workload=workload, batch_size=result.batch_size, **result.knobs, **figures)
