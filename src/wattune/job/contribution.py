"""The reference workloads on one board, within half an hour, for comparison with other boards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from wattune.algorithms import place
from wattune.cap import NO_LIMIT
from wattune.devices import Device
from wattune.errors import DeviceError, InputError
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.profiling import WITHIN, profile_key
from wattune.profiling.cell_probe import ENOUGH_S, SHORTEST_WINDOW_S, WARM_UP_STEPS, WINDOWS, CellProbe
from wattune.profiling.recheck import deviation
from wattune.profiling.reference_power import ALGORITHM, references
from wattune.profiling.strategies import full
from wattune.records import (
    AbortedProbe,
    ContributedBoard,
    ContributedWorkload,
    Contribution,
    ProfileCell,
    ProfileCost,
    Repeat,
    provenance,
)
from wattune.workloads import REFERENCE_VERSION, Workload

LIMIT_MINUTES = 30.0
BATCH_SIZES = (8, 32, 128)
SETTINGS = 5
"""Most settings that are measured, spread evenly from the lowest to the highest."""
DATA_TYPE = "fp32"
STEPS = 5
RESERVE = 0.15
"""Share of the limit that is kept for the repeats at the end, and for cells that have to be measured again."""

Progress = Callable[[int, int, str], None]


class _OutOfTime(Exception):
    """The time of a workload has run out."""


@dataclass
class _Measured:
    """One workload's cells so far, in the order of their measurement, and what they took."""

    workload: Workload
    probe: CellProbe
    cells: list[ProfileCell] = field(default_factory=list)
    costs: list[ProfileCost] = field(default_factory=list)
    repeats: list[Repeat] = field(default_factory=list)


def planned_points(device: Device) -> list[OperatingPoint]:
    """The points of each workload, in order: each batch size at the highest setting first, then at the lowest."""
    return [OperatingPoint(BatchShape(size, size), knobs) for size in BATCH_SIZES for knobs in _settings(device)]


def least_s(device: Device) -> float:
    """Seconds that a contribution takes if every step is short."""
    each_s = device.sensor.settle_s + WINDOWS * _window_s(device)
    return len(references(DATA_TYPE)) * (len(planned_points(device)) + 1) * each_s


def contribute(
    device: Device, *, limit_minutes: float = LIMIT_MINUTES, progress: Progress | None = None
) -> Contribution:
    """Measure the reference workloads over batch sizes and settings, at most ``limit_minutes`` of the device's time.

    Every workload gets an equal share of the time. Throttled cells are measured again; at the end, so is the first cell
    of each workload.

    Raises: InputError for a device that cannot contribute; DeviceError.
    """
    check_device(device)
    began_s = device.now_s()
    limit_s = 60 * limit_minutes
    end_s = began_s + (1 - RESERVE) * limit_s
    points = planned_points(device)
    shapes = list(dict.fromkeys(point.shape for point in points))
    workloads = references(DATA_TYPE)
    planned = len(points) * len(workloads)
    device.events()
    runs: list[_Measured] = []
    for index, workload in enumerate(workloads):
        left = len(workloads) - index
        share_end_s = device.now_s() + max(0.0, end_s - device.now_s()) / left
        probe = CellProbe(device, workload, ALGORITHM, steps=STEPS, limit=NO_LIMIT, rows=shapes)
        run = _Measured(workload, probe)
        runs.append(run)

        def measure(point: OperatingPoint, run: _Measured = run, end_s: float = share_end_s) -> ProfileCell:
            if device.now_s() + _expected_s(device, run, point) > end_s:
                raise _OutOfTime
            if progress is not None:
                done = sum(len(run.cells) for run in runs)
                progress(done, planned, f"{run.workload.name}, {point}")
            return _measured(run, point)

        try:
            full(shapes, [_settings(device)], measure)
        except _OutOfTime:
            continue
    for run in runs:
        first = next((cell for cell in run.cells if not cell.out_of_memory), None)
        if first is None or device.now_s() + run.costs[run.cells.index(first)].time_s > began_s + limit_s:
            continue
        again, cost = run.probe.measure(first.point)
        run.costs.append(cost)
        if isinstance(again, ProfileCell) and not again.out_of_memory:
            change = deviation(first, again)
            run.repeats.append(Repeat(**first.point.fields(), time=change.time, power=change.power))
    record = _record(device, runs, planned=planned, limit_s=limit_s, time_s=device.now_s() - began_s)
    if progress is not None:
        progress(planned if record.is_complete else record.points, planned, "done")
    return record


def check_device(device: Device) -> None:
    """Check that this device can contribute. Raises: InputError for a recording, DeviceError for a torch that leaves
    the GPU idle."""
    if device.kind == "replayed":
        raise InputError("a recorded device has nothing to contribute", value=device.name)
    if device.kind == "measured" and device.trains_on == "gpu" and place("gpu").type == "cpu":
        raise DeviceError(
            f"{device.name}: this torch trains on the CPU, and the figures would be those of an idle GPU; see wattune "
            "doctor"
        )


def _settings(device: Device) -> list[Knobs]:
    """The highest setting, the lowest, and those between, descending."""
    if not device.knobs:
        return [Knobs()]
    ladder = device.ladder(Knobs({knob.name: knob.by_power[-1] for knob in device.knobs}))
    count = min(SETTINGS, len(ladder))
    spread = [ladder[round(i * (len(ladder) - 1) / max(1, count - 1))] for i in range(count)]
    return [spread[-1], *spread[:1], *spread[-2:0:-1]] if count > 1 else spread


def _measured(run: _Measured, point: OperatingPoint) -> ProfileCell:
    result, cost = run.probe.measure(point)
    assert not isinstance(result, AbortedProbe)  # there is no cap
    run.cells.append(result)
    run.costs.append(cost)
    return result


def _window_s(device: Device) -> float:
    return max(device.sensor.window_s, device.sensor.period_s, SHORTEST_WINDOW_S)


def _expected_s(device: Device, run: _Measured, point: OperatingPoint) -> float:
    """Expected time of a cell: that of the latest one, scaled with the batch size and the first knob."""
    shortest_s = device.sensor.settle_s + WINDOWS * _window_s(device)
    latest = next((cell for cell in reversed(run.cells) if cell.step_s is not None), None)
    if latest is None or latest.step_s is None:
        return shortest_s
    setting, latest_setting = point.knobs.first or 1.0, latest.knobs.first or 1.0
    step_s = latest.step_s * max(1.0, point.batch_size / latest.batch_size) * max(1.0, latest_setting / setting)
    return shortest_s + WARM_UP_STEPS * step_s + min(STEPS * step_s, ENOUGH_S + step_s)


def _record(device: Device, runs: Sequence[_Measured], *, planned: int, limit_s: float, time_s: float) -> Contribution:
    cells = [cell for run in runs for cell in run.cells]
    costs = [cost for run in runs for cost in run.costs]
    repeats = [repeat for run in runs for repeat in run.repeats]
    # After a batch size that does not fit, its other settings are not tried.
    unfit = sum(len(_settings(device)) - 1 for cell in cells if cell.out_of_memory)
    return Contribution(
        board=described(device),
        set_version=REFERENCE_VERSION,
        workloads=tuple(
            ContributedWorkload(
                workload=run.workload.name,
                key=profile_key(device, run.workload, ALGORITHM),
                cells=tuple(sorted(run.cells, key=lambda cell: cell.point.order)),
                repeats=tuple(run.repeats),
            )
            for run in runs
        ),
        points=len(cells),
        planned=planned,
        limit_s=limit_s,
        time_s=time_s,
        energy_j=math.fsum(cost.energy_j for cost in costs),
        is_complete=len(cells) + unfit == planned,
        is_steady=bool(repeats) and all(max(abs(r.time), abs(r.power)) <= WITHIN for r in repeats),
        within=WITHIN,
        throttled_cells=sum(cell.disturbed for cell in cells),
        # The kinds alone: the texts may name programs and users.
        events=tuple(dict.fromkeys(event.kind for event in device.events())),
        provenance=provenance(device.kind, device=device.name),
    )


def described(device: Device) -> ContributedBoard:
    """The device's properties that figures depend on. Nothing else is taken from it: problems, events and the text
    that named it may contain paths, addresses and names of users."""
    return ContributedBoard(
        name=device.name,
        mode=device.mode,
        settings={knob.name: knob.values for knob in device.knobs},
        memory_bytes=device.memory_bytes or None,
        sensor_rail=device.sensor.rail,
        sensor_covers=device.sensor.covers,
        sensor_window_s=device.sensor.window_s,
        sensor_resolution_w=device.sensor.resolution_w,
        **device.versions(),
        torch=torch.__version__,
        cuda=torch.version.cuda,
    )
