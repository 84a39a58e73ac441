"""The peak memory of a training step in a process of its own: any model of ``synthetic_models``, any algorithm."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context

import torch

from benchmarks.asyncfgd.synthetic_models import MODELS
from wattune.algorithms import open_algorithm
from wattune.profiling.peak_memory import PeakMemory

STEPS = 3


def measure(algorithm: str, model: str, batch: int) -> dict[str, float]:
    """The peak over some steps, beyond what the libraries take, and as modelled for a simulated board, in MB (1e6
    bytes)."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure, algorithm, model, batch).result()


def _measure(name: str, model: str, batch: int) -> dict[str, float]:
    torch.set_num_threads(1)
    peak, task = PeakMemory("cpu", alone=True), MODELS[model]
    modelled_bytes = open_algorithm(name, task, batch).work().peak_memory_bytes
    next(open_algorithm(name, task, 2).run(repeat(task.example(2))))  # what the libraries set up
    peak.settle()
    peak.begin()
    steps = open_algorithm(name, task, batch).run(repeat(task.example(batch)))
    for _ in range(STEPS):
        next(steps)
    return {"peak_mb": (peak.read() or 0.0) / 1e6, "modelled_mb": modelled_bytes / 1e6}
