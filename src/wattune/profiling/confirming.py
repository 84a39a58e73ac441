"""A second, longer look at one cell, before a training relies on it."""

from __future__ import annotations

from typing import Any

from wattune.devices import Device, RecordedDevice
from wattune.profiling.probe import Prober
from wattune.profiling.strain import happened
from wattune.records import AbortedProbe, Confirmation, OperatingPoint, ProfileCell, ProfileCost, ProfileTable
from wattune.workloads import Workload

WINDOWS = 100
"""Windows of the sensor that the second look takes.

The next reading is above the largest of n with probability 1/(n + 1) if all are alike: with 100, one in a hundred later
readings at most is to be expected above the cap. A pick needs this more than other cells. It is the highest clock whose
few readings were below the cap: often one that was read low.
"""


def confirm(
    device: Device, workload: Workload, table: ProfileTable, point: OperatingPoint, *, cap_w: float
) -> ProfileTable:
    """Measure the cell at ``point`` again, for ``WINDOWS`` windows of the sensor or until a reading is above the cap.

    The table that comes back has the larger of the two peaks there, the cost of both, and a note that this was done,
    by which it is not done twice for a cap. Time and mean power stay as they were. A recorded device adds nothing.

    Raises: DeviceError, InputError.
    """
    place = point.model_dump()
    if isinstance(device, RecordedDevice) or any(_is_of(place, cap_w, done) for done in table.confirmed):
        return table
    prober = Prober(device, workload.without_weights(), table.algorithm, steps=1, cap_w=cap_w, windows=WINDOWS)
    found, cost = prober.probe((point.batch_size, point.micro_batch_size or point.batch_size), point.setting)
    peak_w = found.power_w if isinstance(found, AbortedProbe) else found.power_peak_w
    assert peak_w is not None  # it fitted in memory before

    def looked_at_again(cell: ProfileCell) -> ProfileCell:
        if cell.point != point or cell.power_peak_w is None:
            return cell
        return cell.model_copy(update={"power_peak_w": max(cell.power_peak_w, peak_w)})

    return table.model_copy(
        update={
            "cells": tuple(looked_at_again(cell) for cell in table.cells),
            "confirmed": (*table.confirmed, Confirmation(**place, cap_w=cap_w, power_w=peak_w)),
            "cost": _sum(table.cost, cost),
            "notes": (*table.notes, *happened(device)),
        }
    )


def _is_of(place: dict[str, Any], cap_w: float, done: Confirmation) -> bool:
    # One that went on to its end under a higher cap would have done so under a lower one that no reading broke.
    enough = done.cap_w == cap_w or done.power_w <= cap_w <= done.cap_w
    return enough and place == {field: getattr(done, field) for field in place}


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
