"""A second, longer look at one cell, before a training relies on it."""

from __future__ import annotations

from wattune.cap import SensorLimit
from wattune.devices import Device
from wattune.point import OperatingPoint
from wattune.profiling.board_health import happened
from wattune.profiling.cell_probe import CellProbe
from wattune.profiling.repeats import merged
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

    The table that comes back has the larger of the two peaks there (or, under a cap on a mean, the power of both
    together, and no such cell if the cap is not kept), the cost of both, and a note that this was done,
    so that it is not done twice for a limit. Time and mean power stay as they were. Without a limit the
    table stays as it is.

    Raises: DeviceError, InputError.
    """
    limit = limit.strict
    limit_w = limit.limit_w
    if limit_w is None or any(_is_of(point, limit, done) for done in table.confirmed):
        return table
    probe = CellProbe(device, workload.without_weights(), table.algorithm, steps=1, limit=limit, windows=WINDOWS)
    result, cost = probe.measure(point)
    highest_w = result.power_w if isinstance(result, AbortedProbe) else result.highest_w
    assert highest_w is not None  # it fitted in memory before
    aborted = (result,) if isinstance(result, AbortedProbe) and limit.window_s is not None else ()

    def looked_at_again(cell: ProfileCell) -> ProfileCell:
        if cell.point != point or cell.power_peak_w is None:
            return cell
        if isinstance(result, ProfileCell) and limit.window_s is not None:  # the mean counts: that of both
            times = {"step_s": cell.step_s, "step_std_s": cell.step_std_s, "steps": result.steps}
            return merged([cell, result])[0].model_copy(update=times)
        return cell.model_copy(update={"power_peak_w": max(cell.power_peak_w, highest_w)})

    return table.model_copy(
        update={
            "cells": tuple(looked_at_again(cell) for cell in table.cells if not aborted or cell.point != point),
            "aborted": (*table.aborted, *aborted),
            "confirmed": (
                *table.confirmed,
                Confirmation(**point.fields(), cap_w=limit_w, cap_window_s=limit.window_s, power_w=highest_w),
            ),
            "cost": _sum(table.cost, cost),
            "notes": (*table.notes, *happened(device)),
        }
    )


def _is_of(point: OperatingPoint, limit: SensorLimit, done: Confirmation) -> bool:
    # One that went on to its end under a higher cap would have done so under a lower one that nothing broke.
    limit_w = limit.limit_w or 0.0
    enough = done.cap_w == limit_w or done.power_w <= limit_w <= done.cap_w
    return enough and (done.point, done.cap_window_s) == (point, limit.window_s)


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
