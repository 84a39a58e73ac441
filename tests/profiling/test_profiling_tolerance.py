"""Tables of boards that are drawn from the ranges of a file."""

from __future__ import annotations

import pytest
from tests.support.profiles import BATCHES, workload

from wattune.algorithms import open_algorithm
from wattune.devices import SimulatedDevice, builtin_board
from wattune.devices.simulator.variants import drawn, exact
from wattune.point import BatchShape
from wattune.profiling import drawn_tables, profile, tolerance


@pytest.mark.slow
def test_each_table_is_that_of_the_board_that_was_drawn(monkeypatch):
    monkeypatch.setattr(tolerance, "DRAWS", 3)
    board = builtin_board("jetson-nano")
    tables = list(drawn_tables(SimulatedDevice(board), workload(), "backprop"))
    assert len({table.cells for table in tables}) == 3
    sensor = board.sensor.model_copy(update={"noise_w": 0.0, "resolution_w": 0.0})
    for seed, table in enumerate(tables):
        assert table.provenance.kind == "simulated"
        assert {cell.batch_size for cell in table.cells} == set(BATCHES)
        other = drawn(board, seed).model_copy(update={"sensor": sensor})
        measured = profile(SimulatedDevice(other), workload(), reference=False, steps=20)
        for known, cell in zip(table.cells, measured.cells, strict=True):
            assert known.point == cell.point
            assert known.step_s == pytest.approx(cell.step_s)
            assert known.power_peak_w == pytest.approx(cell.power_peak_w, rel=0.01)
            assert known.power_peak_w > cell.power_peak_w * (1 - 1e-9)


def test_without_ranges_there_is_nothing_to_draw():
    board = builtin_board("jetson-nano").model_copy(update={"ranges": {}})
    assert list(drawn_tables(SimulatedDevice(board), workload(), "backprop")) == []


def test_what_does_not_fit_is_not_in_the_tables(monkeypatch):
    monkeypatch.setattr(tolerance, "DRAWS", 1)
    device = SimulatedDevice(builtin_board("jetson-nano"))
    device.memory_bytes = 30e6
    (table,) = drawn_tables(device, workload(), "backprop")
    assert 0 < len({cell.batch_size for cell in table.cells}) < len(BATCHES)


def test_the_table_of_a_board_as_its_file_says_it():
    board, shapes = builtin_board("jetson-nano"), [BatchShape(8, 8), BatchShape(16, 4)]
    works = {
        shape: open_algorithm("backprop", workload(), shape.batch, micro_batch_size=shape.micro).work()
        for shape in shapes
    }
    found = tolerance.exact_table(SimulatedDevice(board), works, workload="points", algorithm="backprop", seed=3)
    clocks = board.chip("gpu").processor.clocks_mhz
    points = [(cell.batch_size, cell.micro_batch_size, cell.clock_mhz) for cell in found.cells]
    assert points == [(size, None if micro == size else micro, clock) for size, micro in shapes for clock in clocks]
    for cell in found.cells:
        work = works[cell.shape]
        assert cell.step_s == exact(board, "gpu", work)[cell.knobs].step_s
        assert cell.memory_bytes == work.peak_memory_bytes
    assert (found.device, found.workload, found.algorithm) == ("sim:jetson-nano", "points", "backprop")
    assert (found.provenance.kind, found.provenance.device, found.provenance.seed) == (
        "simulated",
        "sim:jetson-nano",
        3,
    )
