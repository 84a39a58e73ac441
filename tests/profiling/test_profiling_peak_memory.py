"""How much memory a step takes, in the cells of a profile; and profiles of other algorithms than plain backprop."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tests.support.profiles import Computer, board, workload
from torch import nn

from wattune.algorithms import open_algorithm
from wattune.errors import UnknownName
from wattune.point import BatchShape
from wattune.profiling import profile
from wattune.profiling.memory_fit import MemoryFit, fit
from wattune.profiling.peak_memory import PeakMemory
from wattune.profiling.repeats import merged
from wattune.records import ProfileCell, ProfileTable

MB = 1e6


class Shared(Computer):
    shares_memory = True


def deep() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1)]
    for _ in range(15):
        layers += [nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    ["backprop", "backprop:checkpoint=auto", "forward-gradient", "async-fgd@2:modules=2"],
)
def test_on_a_simulated_board_it_is_that_of_the_counted_step(algorithm):
    work = workload(model=deep, micro_batch_sizes=(8, 32))
    found = profile(board(), work, algorithm=algorithm, reference=False, steps=1)
    assert found.algorithm == algorithm
    assert found.key is not None
    assert found.key.algorithm == algorithm
    rows = {(c.batch_size, c.micro_batch_size or c.batch_size) for c in found.cells}
    if algorithm.startswith("async"):  # which takes no micro-batches
        assert rows == {(8, 8), (32, 32), (128, 128)}
    else:
        assert rows == {(8, 8), (32, 8), (32, 32), (128, 8), (128, 32)}
    for batch_size, micro in rows:
        counted = open_algorithm(algorithm, work, batch_size, micro_batch_size=micro).work().peak_memory_bytes
        own = {
            c.memory_bytes
            for c in found.cells
            if (c.batch_size, c.micro_batch_size or c.batch_size) == (batch_size, micro)
        }
        assert own == {counted}
    assert ProfileTable.parse(found.dump()) == found


def test_options_in_any_order_are_one_algorithm():
    one, other = (
        profile(board(), workload(batch_sizes=(8,)), algorithm=f"async-fgd:{options}", steps=1, reference=False)
        for options in ("perturb=weights,modules=02", "modules=2,perturb=weights")
    )
    assert one.algorithm == other.algorithm == "async-fgd@2:modules=2,perturb=weights"
    assert one.key == other.key
    with pytest.raises(UnknownName, match="unknown algorithm: nonsense"):
        profile(board(), workload(), algorithm="nonsense")


@pytest.fixture(scope="module")
def executed():
    """The memory of steps of 4 and of 32 as measured, in a process that takes seconds to start."""
    torch.set_num_threads(1)
    found = profile(Shared(), workload(model=deep, batch_sizes=(4, 32)), steps=1, reference=False)
    return [cell.memory_bytes for cell in found.cells]


@pytest.mark.slow
@pytest.mark.xdist_group("measured memory")
def test_where_steps_are_executed_it_is_measured_in_a_process_of_its_own(executed):
    small, large = executed
    counted = open_algorithm("backprop", workload(model=deep), 32).work().peak_memory_bytes
    assert small < large
    assert 0.8 * counted < large < 2 * counted


@pytest.mark.slow
@pytest.mark.xdist_group("measured memory")
def test_checkpointing_takes_less_as_measured(executed):
    rows = [BatchShape(4, 4), BatchShape(32, 32)]
    found = fit(Shared(), workload(model=deep, batch_sizes=(4, 32)), "backprop:checkpoint=auto", rows)
    taken = found.memory_bytes(BatchShape(32, 32))
    assert taken < 0.75 * executed[1]


def test_inputs_are_those_of_the_whole_batch():
    known = MemoryFit(frozenset({64}), {8: 10 * MB}, 0.5 * MB)
    assert known.memory_bytes(BatchShape(8, 8)) == 14 * MB
    assert known.memory_bytes(BatchShape(32, 8)) == 26 * MB
    assert known.memory_bytes(BatchShape(64, 64)) is None


def test_nobody_knows_on_a_device_that_shares_no_memory_and_has_no_cuda():
    found = profile(Computer(), workload(batch_sizes=(2,), budget_samples=2), steps=1, reference=False)
    assert found.cells[0].memory_bytes is None


ONE_BLOCK = """
import torch
from wattune.profiling.peak_memory import PeakMemory
peak = PeakMemory("cpu")
peak.settle()
peak.begin()
block = torch.ones(10_000_000)
del block
print(peak.read())
peak.begin()
print(peak.read() or 0.0)
"""


@pytest.mark.slow
def test_the_peak_is_that_since_it_began():
    """In a process of its own, as it is used: what the allocator of an old one holds on to is anybody's guess."""
    done = subprocess.run([sys.executable, "-c", ONE_BLOCK], capture_output=True, text=True, check=True)
    first, later = map(float, done.stdout.split())
    assert 35 * MB < first < 80 * MB
    assert later < 20 * MB


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_it_is_what_tensors_took():
    peak = PeakMemory.of_cuda("gpu")
    assert peak is not None
    block = torch.ones(10_000_000, device="cuda")
    del block
    assert peak.read() == pytest.approx(40 * MB, rel=0.05)


def test_without_cuda_a_process_that_does_more_is_not_measured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert PeakMemory.of_cuda("gpu") is None
    assert PeakMemory.of_cuda("cpu") is None


def test_two_measurements_of_a_cell_take_the_larger():
    cells = [
        ProfileCell(batch_size=8, step_s=1.0, power_mean_w=2.0, power_peak_w=3.0, steps=1, memory_bytes=m)
        for m in (5.0, 7.0, None)
    ]
    assert merged(cells[:2])[0].memory_bytes == 7.0
    assert merged([cells[1], cells[2]])[0].memory_bytes == 7.0
    assert merged([cells[2]])[0].memory_bytes is None
