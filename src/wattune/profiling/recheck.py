"""Check of a table after the board's mode or the software has changed: five cells, measured again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.errors import InputError, RecordError
from wattune.point import BatchShape, OperatingPoint
from wattune.profiling.board_health import happened
from wattune.profiling.cell_probe import CellProbe
from wattune.profiling.key import profile_key
from wattune.records import AbortedProbe, ProfileCell, ProfileCost, ProfileTable, provenance
from wattune.workloads import Workload

Progress = Callable[[int, int, str], None]

WITHIN = 0.05
"""Share by which time and mean power of a cell may differ for the table still to hold."""


@dataclass(frozen=True)
class Deviation:
    """One cell measured again: its time and its mean power over those of the table, less 1."""

    point: OperatingPoint
    time: float
    power: float

    def __str__(self) -> str:
        return f"{self.point}: time {self.time:+.1%}, power {self.power:+.1%}"


@dataclass(frozen=True)
class Deviations:
    """All cells that were measured again, and what that cost."""

    cells: tuple[Deviation, ...]
    cost: ProfileCost | None = None

    @property
    def largest(self) -> float:
        """The largest share by which any time or power differs."""
        return max(max(abs(cell.time), abs(cell.power)) for cell in self.cells)

    def __str__(self) -> str:
        return "\n".join(map(str, self.cells))


def check(
    device: Device,
    workload: Workload | None,
    table: ProfileTable,
    *,
    steps: int = 5,
    progress: Progress | None = None,
) -> tuple[ProfileTable, Deviations]:
    """Measure the corners and the middle of the table again, under the device's present mode and software.

    The result is the table with the present key, these cells as measured now and a note, and the deviations.

    Raises: RecordError where the table is of something else, and where a time or a power differs by more than
    ``WITHIN``, which says by how much; InputError for a recorded device; DeviceError.
    """
    workload = None if workload is None else workload.without_weights()
    if device.recorded_profile() is not None:
        raise InputError("a recorded device has nothing to be measured again", value=device.name)
    key = profile_key(device, workload, table.algorithm)
    foreign = table.provenance.kind_on(device.kind)
    if foreign or table.key is None or (table.key != key and not table.key.is_stale(key)):
        differences = ["it has no key"] if table.key is None else [*foreign, *table.key.differences(key)]
        raise RecordError(
            "the profile belongs to something else, it differs in", value=", ".join(differences), hint="profile again"
        )
    cells = five(table.measured)
    if not cells:
        raise RecordError("the profile has no measured cell to check", hint="profile again")
    limit = SensorLimit(table.cost.cap_w if table.cost else None, window_s=table.cap_window_s)
    rows = [cell.shape for cell in cells]
    probe = CellProbe(device, workload, table.algorithm, steps=steps, limit=limit, rows=rows)
    fresh: dict[OperatingPoint, ProfileCell] = {}
    found: list[Deviation] = []
    costs: list[ProfileCost] = []
    for done, cell in enumerate(cells):
        if progress is not None:
            progress(done, len(cells), f"batch size {cell.batch_size}, again")
        again, cost = probe.measure(cell.point)
        costs.append(cost)
        if isinstance(again, AbortedProbe):
            raise _stale(f"batch size {cell.batch_size} was stopped at {again.power_w:.4g} W, above {again.cap_w:g} W")
        if again.out_of_memory:
            raise _stale(f"batch size {cell.batch_size} does not fit in memory any more")
        fresh[cell.point] = again
        found.append(deviation(cell, again))
    if progress is not None:
        progress(len(cells), len(cells), "done")
    deviations = Deviations(tuple(found), _sum(costs))
    if deviations.largest > WITHIN:
        raise _stale("; ".join(map(str, deviations.cells)))
    changes = "; ".join(table.key.differences(key)) or "nothing of its key"
    note = (
        f"{len(cells)} cells of this table were measured again after a change of {changes}: none differs by more than "
        f"{deviations.largest:.1%} in time or power"
    )
    origin = {**table.provenance.model_dump(), "software": None, "created_at": None}
    made = provenance(device.kind, **{k: v for k, v in origin.items() if k != "kind" and v is not None})
    kept = table.model_copy(
        update={
            "key": key,
            "cells": tuple(fresh.get(cell.point, cell) for cell in table.cells),
            "supply": device.supply or table.supply,
            "notes": (*table.notes, note, *happened(device)),
            "provenance": made,
        }
    )
    return kept, deviations


def five(cells: Sequence[ProfileCell]) -> list[ProfileCell]:
    """The corners and the middle of what was measured: at the smallest and the largest batch the lowest and the highest
    setting, at the middle batch the middle one; fewer where some of them are the same."""
    rows: dict[BatchShape, list[ProfileCell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.knobs.order):
        rows.setdefault(cell.shape, []).append(cell)
    shapes = sorted(rows)
    if not shapes:
        return []
    small, middle, large = rows[shapes[0]], rows[shapes[len(shapes) // 2]], rows[shapes[-1]]
    picked = (small[0], small[-1], middle[len(middle) // 2], large[0], large[-1])
    return list({cell.point: cell for cell in picked}.values())


def deviation(before: ProfileCell, now: ProfileCell) -> Deviation:
    """The deviation of a measured cell from the same one before."""
    assert before.step_s is not None  # a measured cell has all of them
    assert before.power_mean_w is not None
    assert now.step_s is not None
    assert now.power_mean_w is not None
    return Deviation(before.point, now.step_s / before.step_s - 1, now.power_mean_w / before.power_mean_w - 1)


def _sum(costs: Sequence[ProfileCost]) -> ProfileCost:
    return ProfileCost(
        time_s=sum(cost.time_s for cost in costs),
        energy_j=sum(cost.energy_j for cost in costs),
        above_cap_s=sum(cost.above_cap_s for cost in costs),
        probes=sum(cost.probes for cost in costs),
        cap_w=costs[0].cap_w,
    )


def _stale(why: str) -> RecordError:
    return RecordError(
        f"the profile does not hold any more, {why}", allowed=f"{WITHIN:.0%} either way", hint="profile again"
    )
