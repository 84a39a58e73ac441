"""Peak power of the fixed set of reference workloads: what a clock that suits any workload is chosen from.

A board's references are measured once and kept, so that every profile of the board chooses from the same figures. A
simulated board has nothing to keep: a new one always measures the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.errors import OutputError
from wattune.files import check_writable
from wattune.point import BatchShape, OperatingPoint
from wattune.profiling.cell_probe import CellProbe
from wattune.profiling.journal import Journal, JournalEntry, Partial, total_cost
from wattune.profiling.key import profile_key
from wattune.records import AbortedProbe, ReferencePower, ReferenceSet
from wattune.workloads import REFERENCE_VERSION, Workload, reference_workloads

ALGORITHM = "backprop"
"""Algorithm that trains the reference workloads in every profile."""

STEPS = 1
"""Steps that a reference probe has to measure: its power counts and not its time, so the sensor's windows decide."""

WINDOWS = 10
"""Windows of the sensor that a reference is measured for: it is measured once, and serves every later profile."""

Report = Callable[[str, OperatingPoint], None]


@cache
def references(data_type: str) -> tuple[Workload, ...]:
    """The reference workloads, computing in this data type; kept, since the work of a step is counted once for each."""
    return tuple(replace(workload, data_type=data_type) for workload in reference_workloads())


def measure(
    device: Device,
    workload: Workload,
    algorithm: str,
    shape: BatchShape,
    report: Report,
    *,
    limit: SensorLimit,
    folders: Sequence[Path],
) -> ReferenceSet | None:
    """Powers of the reference workloads, and of ``workload`` at its largest ``shape``: no reference may be as heavy.

    ``folders``: the first that is writable keeps what the board has measured under this window of the cap, which is not
    measured again. None at all: a simulated board, of which a new one measures them.
    """
    begin = Partial(
        key=profile_key(device, references(workload.data_type)[0], ALGORITHM),
        strategy=f"references {REFERENCE_VERSION}",
        cap_window_s=limit.window_s,
        steps=STEPS,
        rows=(),
        host_s_per_sample=0.0,
    )
    own = f"{workload.name} {algorithm} {_digest(profile_key(device, workload, algorithm).model_dump_json())}"
    if not folders:
        device = device.as_new()
    folder = _first_writable(folders)
    kept = _digest(f"{begin.key} {begin.strategy} {begin.cap_window_s}")
    notebook = Journal(folder and folder / f"references-{kept}.jsonl", device, begin)
    for reference in references(workload.data_type):
        sizes = (reference.batch_sizes[-1] >> i for i in range(reference.batch_sizes[-1].bit_length()))
        _climb(device, reference, reference.name, ALGORITHM, [BatchShape(b, b) for b in sizes], notebook, report, limit)
    _climb(device, workload, own, algorithm, [shape], notebook, report, limit)
    names = {own, *(reference.name for reference in references(workload.data_type))}
    notes = [note for note in notebook.notes if note.reference in names]
    latest = {(note.reference, note.result.point): note for note in notes}
    powers = tuple(power for note in latest.values() if (power := _power(note)) is not None)
    return ReferenceSet(set_version=REFERENCE_VERSION, powers=powers, cost=total_cost(notes)) if powers else None


def _climb(
    device: Device,
    workload: Workload,
    name: str,
    algorithm: str,
    shapes: list[BatchShape],
    notebook: Journal,
    report: Report,
    limit: SensorLimit,
) -> None:
    """Probe a workload along each of the device's climbs, up to the first probe that is stopped at the cap; at the
    first of the shapes that fits in memory.

    Source: arXiv 2502.18323, section 4 (Baseline 1: clocks at which the limit holds for any model and batch size).
    """
    probe = CellProbe(
        device,
        workload,
        algorithm,
        steps=STEPS,
        limit=limit,
        windows=WINDOWS,
        rows=notebook.missing(shapes, name),
        calm=notebook.is_calm(limit),
    )
    for steps in device.climbs():
        left = list(steps)
        while left and shapes:
            point = OperatingPoint(shapes[0], left[0])
            report(workload.name, point)
            result = notebook.look_up(name, probe, point)
            if isinstance(result, AbortedProbe) and limit.allows(result.power_w):  # stopped under a lower cap
                notebook.measure(name, probe, point)
                result = notebook.look_up(name, probe, point)
            # What is kept from a higher cap may lie above this one: nothing beyond it is probed.
            if isinstance(result, AbortedProbe) or not limit.allows(result.power_mean_w or 0.0):
                break
            if result.out_of_memory:
                shapes = shapes[1:]
            else:
                left.pop(0)


def _first_writable(folders: Sequence[Path]) -> Path | None:
    # Tried before anything is measured: the cache of a home directory may be read-only.
    for folder in folders:
        with suppress(OutputError):
            check_writable(folder)
            return folder
    return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


_FIGURES = ("power_peak_w", "power_window_w", "power_mean_w", "power_std_w", "step_s", "steps")


def _power(note: JournalEntry) -> ReferencePower | None:
    result = note.result
    if isinstance(result, AbortedProbe):
        figures = {"power_peak_w": result.power_w, "stopped": True}
    elif result.out_of_memory:
        return None
    else:
        figures = {name: getattr(result, name) for name in _FIGURES}
    return ReferencePower(workload=note.reference or "", batch_size=result.batch_size, **result.knobs, **figures)
