from __future__ import annotations

import pytest
from tests.support.profiles import board, workload

from wattune.cap import SensorLimit
from wattune.profiling import confirm, profile
from wattune.profiling.confirmation import WINDOWS
from wattune.records import ProfileTable


def low(table: ProfileTable, by_w: float) -> ProfileTable:
    """The same table with every peak read lower by so much."""
    cells = [c.model_copy(update={"power_peak_w": c.power_peak_w - by_w}) for c in table.cells]
    return table.model_copy(update={"cells": tuple(cells)})


def test_without_noise_a_second_look_changes_nothing_but_the_cost():
    device = board()
    table = profile(device, workload(), reference=False)
    point = table.cells[20].point
    again = confirm(device, workload(), table, point, SensorLimit(9.0))
    assert again.cells == table.cells
    assert again.cost.probes == table.cost.probes + 1
    spent_s = again.cost.time_s - table.cost.time_s
    assert spent_s >= WINDOWS * device.sensor.window_s
    assert [(c.point, c.cap_w) for c in again.confirmed] == [(point, 9.0)]


def test_a_peak_that_was_read_low_is_raised():
    device = board()
    table = profile(device, workload(), reference=False)
    cell = table.cells[20]
    again = confirm(device, workload(), low(table, 0.2), cell.point, SensorLimit(9.0))
    assert again.cells[20].power_peak_w == cell.power_peak_w
    assert again.cells[19] == low(table, 0.2).cells[19]


def test_it_stops_at_the_first_reading_above_the_cap():
    device = board()
    table = profile(device, workload(), reference=False)
    cell = table.cells[20]
    cap_w = cell.power_peak_w - 0.1
    again = confirm(device, workload(), low(table, 0.2), cell.point, SensorLimit(cap_w))
    assert again.cells[20].power_peak_w > cap_w
    assert again.cost.above_cap_s < 2 * device.sensor.settle_s


@pytest.mark.parametrize(("cap_w", "measured"), [(9.0, False), (8.0, False), (9.5, True), (3.0, True)])
def test_what_was_confirmed_under_a_cap_is_not_measured_again_for_it(cap_w, measured):
    device = board()
    table = profile(device, workload(), reference=False)
    point = table.cells[20].point
    once = confirm(device, workload(), table, point, SensorLimit(9.0))
    twice = confirm(device, workload(), once, point, SensorLimit(cap_w))
    assert (twice is not once) == measured
