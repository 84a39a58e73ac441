"""The peak memory of a training step in a process of its own: a stack of convolutions of any depth, any algorithm."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from benchmarks.asyncfgd.synthetic_models import SyntheticModel, convolutions
from wattune.algorithms import open_algorithm
from wattune.profiling.peak_memory import PeakMemory

STEPS = 3


def measure(algorithm: str, *, depth: int, batch: int) -> dict[str, float]:
    """The peak over some steps, measured and as modelled for a simulated board, in MB (1e6 bytes).

    Without parameters and the batch, and all that a step on two samples has allocated for good.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure, algorithm, depth, batch).result()


def _measure(name: str, depth: int, batch: int) -> dict[str, float]:
    torch.set_num_threads(1)
    peak = PeakMemory("cpu", alone=True)
    task = SyntheticModel(lambda: convolutions(depth), (3, 32, 32))
    algorithm = open_algorithm(name, task, batch)
    modelled_bytes = algorithm.work().peak_memory_bytes
    # A pipeline yields no Step before it is full.
    list(algorithm.run([task.example(2)] * 8))
    batches = [task.example(batch)] * (STEPS + 8)
    peak.settle()
    peak.begin()
    steps = algorithm.run(batches)
    for _ in range(STEPS):
        next(steps)
    fixed_bytes = sum(t.numel() * t.element_size() for t in (*algorithm.module.parameters(), *batches[0]))
    return {"peak_mb": (peak.read() or 0.0) / 1e6, "modelled_mb": (modelled_bytes - fixed_bytes) / 1e6}
