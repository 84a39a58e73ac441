"""Peak memory of a step by each algorithm, and how far the modelled memory is from it: `python -m benchmarks memory`.

Each is measured on the CPU, in a process of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from typing import Any

import torch

from benchmarks.asyncfgd.feasibility import ALGORITHMS
from benchmarks.asyncfgd.synthetic_models import MODELS
from benchmarks.tables.results import table
from benchmarks.timing import keep
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
    list(open_algorithm(name, task, 2).run([task.example(2)] * 8))  # what the libraries set up, in all threads
    peak.settle()
    peak.begin()
    steps = open_algorithm(name, task, batch).run(repeat(task.example(batch)))
    for _ in range(STEPS):
        next(steps)
    return {"peak_mb": (peak.read() or 0.0) / 1e6, "modelled_mb": modelled_bytes / 1e6}


DEEP, BATCH = "CNN, 64 layers", 64
"""The model and the batch of each algorithm's step."""

MODELLED = ("CNN, 16 layers", "ResNet8", "ResNet20", "transformer, 6 layers of 64", "MLP, 8 x 256", "LSTM")
"""Models that backprop's modelled memory is compared on, with a batch of 32."""


def main(arguments: Sequence[str] = ()) -> None:
    """Measure and store."""
    results = {"algorithms": {name: measure(spec, DEEP, BATCH) for name, spec in ALGORITHMS.items()}}
    results["models"] = {name: measure("backprop", name, BATCH // 2) for name in MODELLED}
    keep("asyncfgd_memory", results)


def markdown(results: dict[str, Any]) -> str:
    """A row for each algorithm, and the difference for each model."""
    whole = results["algorithms"]["backprop"]["peak_mb"]
    rows = [
        (name, f"{one['peak_mb']:.1f} MB", f"{one['modelled_mb']:.1f} MB", f"{one['peak_mb'] / whole:.2f}")
        for name, one in results["algorithms"].items()
    ]
    off = (f"{name} {100 * (one['modelled_mb'] / one['peak_mb'] - 1):+.0f}%" for name, one in results["models"].items())
    text = table("algorithm | memory | modelled | relative to backprop", rows)
    return f"{text}\nModelled memory of backprop, batch of 32, off a CPU's: {'; '.join(off)}.\n"
