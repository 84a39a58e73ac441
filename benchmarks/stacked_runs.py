"""Throughput of proxy runs trained as one program; aim 3 times that of separate runs, for the sweeps' perceptron.

`python -m benchmarks stacked_runs [RUNS.csv]`: eight seeds of one batch size on two processes with one thread each,
four separate runs in each of them or one stack of four, in turns; both include the evaluations. Then the choice of the
batch size with several seeds for each of the first requests, on results/decisions_runs.csv and a further table.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.decisions.fresh_runs import RUNS
from benchmarks.decisions.seeds_at_once import compare
from benchmarks.decisions.sweeps import read
from benchmarks.timing import keep
from wattune.algorithms.traced import Untraceable
from wattune.proxy import stacked_runs, sweep
from wattune.proxy.run import ProxyRun
from wattune.proxy.stacked_runs import RunUnit, check_stack, one_thread, train_unit
from wattune.workloads import Data, OptimizerRule, Workload
from wattune.workloads.models import CharacterTransformer, small_cnn

PROCESSES, WIDTH = 2, 4
PAIRS = 5
EVALUATE_EVERY = 128
"""Samples between two evaluations, as in the sweeps."""

TARGET = 0.95


def perceptron() -> nn.Module:
    """The sweeps' network for scikit-learn's digits 5-9."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 5))


def digits() -> Data:
    """The digits 5-9, three quarters of them to train."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    x, y = (x[y >= 5] / 16).astype(np.float32), y[y >= 5] - 5
    return Data((x[:660], y[:660]), (x[660:], y[660:]))


def convolutions() -> nn.Module:
    """The convolutional network of `benchmarks decisions train`."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 5),
    )  # fmt: skip


def images() -> Data:
    """Random images of 3 x 16 x 16."""
    return _random((3, 16, 16), 5)


def batch_normalised() -> nn.Module:
    """The built-in small network with batch normalisation."""
    return small_cnn(classes=5)


def transformer() -> nn.Module:
    """A small transformer: two layers, 64 wide."""
    return CharacterTransformer(layers=2, width=64, heads=4)


def characters() -> Data:
    """Random texts of 64 characters."""
    texts = np.random.default_rng(0).integers(0, 96, (1024, 65))
    inputs, following = texts[:, :-1], texts[:, 1:]
    return Data((inputs[:900], following[:900]), (inputs[900:], following[900:]))


def _random(shape: tuple[int, ...], classes: int) -> Data:
    draws = np.random.default_rng(0)
    x, y = draws.standard_normal((900, *shape), dtype=np.float32), draws.integers(0, classes, 900)
    return Data((x[:700], y[:700]), (x[700:], y[700:]))


WORKLOADS = {
    "perceptron": partial(Workload, "perceptron", model=perceptron, data=digits, input_shape=(64,)),
    "convolutions": partial(Workload, "convolutions", model=convolutions, data=images, input_shape=(3, 16, 16)),
    "batch normalisation": partial(
        Workload, "batch normalisation", model=batch_normalised, data=images, input_shape=(3, 16, 16)
    ),
    "transformer": partial(
        Workload, "transformer", model=transformer, data=characters, input_shape=(64,), task="language"
    ),
}

STEPS = {
    "perceptron": {4: 640, 32: 320, 128: 160},
    "convolutions": {4: 320, 32: 100, 128: 40},
    "batch normalisation": {4: 0},
    "transformer": {4: 32, 32: 8},
}
"""Workload and batch size -> steps of a run, if it can be stacked."""


def workload(name: str, budget_samples: int, target: float | None = None) -> Workload:
    """The workload with this budget."""
    return WORKLOADS[name](
        budget_samples=budget_samples,
        target=target,
        evaluate_every=EVALUATE_EVERY,
        optimizer=OptimizerRule("adam", learning_rate=2e-3, reference_batch_size=32),
    )


def main(arguments: Sequence[str] = ()) -> None:
    """Measure, and store the results."""
    tables = [RUNS, *map(Path, arguments)]
    figures = {
        "processes": PROCESSES,
        "width": WIDTH,
        "pairs": PAIRS,
        "rows": [measure(name, size, steps) for name, sizes in STEPS.items() for size, steps in sizes.items()],
        "sweep": whole_sweep(),
        "seeds_at_once": {"fresh" if table == RUNS else "recorded": compare(read(table)) for table in tables},
    }
    keep("stacked_runs", figures)


def measure(name: str, batch_size: int, steps: int) -> dict[str, Any]:
    """Factors in wall-clock and CPU time, one for each pair, and the result of the tool's own check."""
    budget = max(steps * batch_size, EVALUATE_EVERY)
    checked = workload(name, 1 << 20)  # long enough to be worth the check
    row: dict[str, Any] = {"workload": name, "batch_size": batch_size, "steps": budget // batch_size}
    with one_thread():
        try:
            result = check_stack(checked, "backprop", ProxyRun("", batch_size, 0, "backprop", None), WIDTH)
        except Untraceable as error:
            return row | {"refused": str(error)}
    row |= {"is_stacked": result.factor >= stacked_runs.MIN_FACTOR, "difference": result.difference}
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(PROCESSES), spawn.SimpleQueue()
    workers = [
        spawn.Process(target=_work, args=(name, batch_size, budget, number, barrier, results))
        for number in range(PROCESSES)
    ]
    for worker in workers:
        worker.start()
    times = [results.get() for _ in workers]
    for worker in workers:
        worker.join()
    for what, place in (("wall", 0), ("cpu", 1)):
        separate, stacked = (
            [max(run[way][pair][place] for run in times) for pair in range(PAIRS)] for way in ("separate", "stacked")
        )
        factors = [one / other for one, other in zip(separate, stacked, strict=True)]
        row[what] = {
            "factor": statistics.median(factors),
            "least": min(factors),
            "most": max(factors),
            "separate_step_us": 1e6 * statistics.median(separate) / WIDTH / row["steps"],
        }
    row["trace_s"] = statistics.median(run["trace_s"] for run in times)
    print(row, flush=True)
    return row


def _work(name: str, batch_size: int, budget: int, number: int, barrier: Barrier, results: SimpleQueue[Any]) -> None:
    torch.set_num_threads(1)
    runs = tuple(ProxyRun("", batch_size, WIDTH * number + seed, "backprop", None) for seed in range(WIDTH))
    own, short = workload(name, budget), workload(name, EVALUATE_EVERY)
    separate = [RunUnit((run,)) for run in runs]
    stack = [RunUnit(runs, float(WIDTH))]
    _timed(short, separate)
    times: dict[str, Any] = {"separate": [], "stacked": []}
    times["trace_s"] = _timed(own, stack)[0]
    for _ in range(PAIRS):
        for way, units in (("separate", separate), ("stacked", stack)):
            barrier.wait()
            times[way].append(_timed(own, units))
    times["trace_s"] -= statistics.median(wall for wall, _ in times["stacked"])
    results.put(times)


def _timed(own: Workload, units: Sequence[RunUnit]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    for unit in units:
        train_unit(own, unit)
    return time.perf_counter() - wall, time.process_time() - cpu


def whole_sweep() -> dict[str, Any]:
    """A sweep of the perceptron from start to end, eight seeds at each batch size, with stacks and without."""
    own = workload("perceptron", 32_768, TARGET)
    times: dict[str, list[float]] = {"separate": [], "stacked": []}
    lines: list[str] = []
    least = stacked_runs.MIN_FACTOR
    ends = {}
    for _ in range(3):
        for way in times:
            stacked_runs.MIN_FACTOR = least if way == "stacked" else float("inf")
            begin = time.perf_counter()
            curves = sweep(own, seeds=range(8), folder=None, processes=2, progress=lambda *line: lines.append(line[2]))
            times[way].append(time.perf_counter() - begin)
            ends[way] = [(curve.samples, curve.reached) for curve in curves]
    stacked_runs.MIN_FACTOR = least
    factors = [one / other for one, other in zip(times["separate"], times["stacked"], strict=True)]
    return {
        "runs": len(ends["stacked"]),
        "batch_sizes": list(own.batch_sizes),
        "same_ends": sum(one == other for one, other in zip(ends["separate"], ends["stacked"], strict=True)),
        "separate_s": statistics.median(times["separate"]),
        "stacked_s": statistics.median(times["stacked"]),
        "factor": {"median": statistics.median(factors), "least": min(factors), "most": max(factors)},
        "stacked_batch_sizes": sorted({int(line.split()[2][:-1]) for line in lines if "as one program" in line}),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
