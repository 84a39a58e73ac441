"""A second, longer look at one cell, before a training relies on it."""

from __future__ import annotations

from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.point import OperatingPoint
from wattune.profiling.board_health import happened
from wattune.profiling.cell_probe import CellProbe
from wattune.records import AbortedProbe, Confirmation, ProfileCell, ProfileCost, ProfileTable
from wattune.workloads import Workload

WINDOWS = 100
"""Windows of the sensor that the second look takes.

The next reading is above the largest of n with probability 1/(n + 1) if all are alike: with 100, one in a hundred later
readings at most is to be expected above the cap. A pick needs this more than other cells. It is the highest clock whose
few readings were below the cap: often one that was read low.
"""


def confirm(
    device: Device, workload: Workload, table: ProfileTable, point: OperatingPoint, limit: SensorLimit
) -> ProfileTable:
    """Measure the cell at ``point`` again, for ``WINDOWS`` windows of the sensor or until a reading is above the limit.

    The table that comes back has the larger of the two peaks there, the cost of both, and a note that this was done,
    so that it is not done twice for a limit. Time and mean power stay as they were. Without a limit, and on a
    replayed device, the table stays as it is.

    Raises: DeviceError, InputError.
    """
    limit_w = limit.strict_w
    if (
        limit_w is None
        or device.recorded_profile() is not None
        or any(_is_of(point, limit_w, done) for done in table.confirmed)
    ):
        return table
    probe = CellProbe(device, workload.without_weights(), table.algorithm, steps=1, cap_w=limit_w, windows=WINDOWS)
    result, cost = probe.measure(point)
    peak_w = result.power_w if isinstance(result, AbortedProbe) else result.power_peak_w
    assert peak_w is not None  # it fitted in memory before

    def looked_at_again(cell: ProfileCell) -> ProfileCell:
        if cell.point != point or cell.power_peak_w is None:
            return cell
        return cell.model_copy(update={"power_peak_w": max(cell.power_peak_w, peak_w)})

    return table.model_copy(
        update={
            "cells": tuple(looked_at_again(cell) for cell in table.cells),
            "confirmed": (*table.confirmed, Confirmation(**point.fields(), cap_w=limit_w, power_w=peak_w)),
            "cost": _sum(table.cost, cost),
            "notes": (*table.notes, *happened(device)),
        }
    )


def _is_of(point: OperatingPoint, limit_w: float, done: Confirmation) -> bool:
    # One that went on to its end under a higher cap would have done so under a lower one that no reading broke.
    enough = done.cap_w == limit_w or done.power_w <= limit_w <= done.cap_w
    return enough and done.point == point


def _sum(before: ProfileCost | None, more: ProfileCost) -> ProfileCost | None:
    if before is None:
        return None
    return ProfileCost(
        time_s=before.time_s + more.time_s,
        energy_j=before.energy_j + more.energy_j,
        above_cap_s=before.above_cap_s + (0.0 if before.cap_w is None else more.above_cap_s),
        probes=before.probes + more.probes,
        cap_w=before.cap_w,
    )
