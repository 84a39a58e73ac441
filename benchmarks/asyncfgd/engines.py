"""Four engines without a backward pass, adapted to turned digits: `python -m benchmarks engines`. See the example."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from typing import Any

import torch

from benchmarks.tables.results import table
from benchmarks.timing import ROOT, keep
from wattune.algorithms import open_algorithm

sys.path.insert(0, str(ROOT / "examples" / "engines"))
from engines import BATCH, METHODS, accuracy, workload

STEPS, SEEDS, RATES = 8000, range(5), (1e-3, 3e-3, 1e-2, 3e-2)
JUDGED, TUNED, TUNED_SEED = 1, 3, 10
"""Quarter turns of the digits that are judged on, and of those that the rates are chosen on."""

CUTS = {1: "7", 2: "4/7", 4: "2/4/6/7"}
"""Modules with engines -> where they end; the exact end, without an engine, is a module of its own."""

SLOWER_BELOW = "", ",alpha=0.1"
"""Options of AsyncFGD to choose from: the noise below the exact end may want a smaller rate."""

WAIT_S, TIMED, ROUNDS = 0.02, 20, 5


Run = tuple[str, str, float, int, int, int]
"""Model, by its name in ``METHODS``; algorithm; rate; seed; quarter turns of the digits; steps."""


def _accuracy(run: Run) -> float:
    name, spec, rate, seed, quarter_turns, steps = run
    torch.set_num_threads(1)
    return accuracy(name, spec=spec, rate=rate, seed=seed, quarter_turns=quarter_turns, steps=steps)


def trained(
    methods: Mapping[str, tuple[str, str]], steps: int, processes: int, options: Sequence[str] = ("",)
) -> dict[str, dict[str, Any]]:
    """Rate and accuracies of each method, a model and an algorithm.

    The rate is chosen on another rotation, and for AsyncFGD one of the ``options`` to append with it.
    """
    results = {}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for name, (model, spec) in methods.items():
            specs = [spec + more for more in (options if spec.startswith("async") else ("",))]
            tries = [(one, rate) for one in specs for rate in RATES]
            found = list(pool.map(_accuracy, [(model, *one, TUNED_SEED, TUNED, steps) for one in tries]))
            best = tries[max(range(len(tries)), key=found.__getitem__)]
            runs: list[Run] = [(model, *best, seed, JUDGED, steps) for seed in SEEDS]
            tuned = [[*one, accuracy] for one, accuracy in zip(tries, found, strict=True)]
            accuracies = list(pool.map(_accuracy, runs))
            results[name] = {"algorithm": best[0], "rate": best[1], "accuracies": accuracies, "tuned": tuned}
    return results


def spread(values: Sequence[float]) -> str:
    """The mean, and the least and the most."""
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def step_s(modules: int) -> float:
    """Measure the mean time of a step with engines that take 20 ms, once the pipeline is full."""
    threads = ",backend=threads" if modules > 1 else ""
    task = workload(0, JUDGED, 1e-3, wait_s=WAIT_S)
    algorithm = open_algorithm(f"async-fgd:cuts={CUTS[modules]},perturb=differences{threads}", task, BATCH)
    steps = algorithm.run(islice(task.batches(BATCH, seed=0), TIMED + 20))
    next(islice(steps, 4, 5))
    begun_s = time.perf_counter()
    next(islice(steps, TIMED - 1, TIMED))
    return (time.perf_counter() - begun_s) / TIMED


def main(arguments: Sequence[str] = ()) -> None:
    """Choose the rates, train with five seeds, and store accuracies, memory and step times."""
    torch.set_num_threads(1)
    rounds = [{modules: 1000 * step_s(modules) for modules in CUTS} for _ in range(ROUNDS)]
    processes = int(arguments[0]) if arguments else 1
    methods = trained({name: (name, spec) for name, (spec, _) in METHODS.items()}, STEPS, processes, SLOWER_BELOW)
    for name, one in methods.items():
        task = workload(0, JUDGED, 1e-3, twin=name == "twin")
        one["bytes"] = open_algorithm(one["algorithm"], task, BATCH).work().peak_memory_bytes
    results = {"steps": STEPS, "step_ms": rounds, "methods": methods}
    keep("asyncfgd_engines", results)


def markdown(results: dict[str, Any]) -> str:
    """The results as a table, and the times of a step as ratios."""
    methods = results["methods"].items()
    rows = [(name, spread(one["accuracies"]), f"{one['bytes'] / 1000:.0f} kB") for name, one in methods]
    ratios = {k: [each["1"] / each[k] for each in results["step_ms"]] for k in ("2", "4")}
    two, four = (f"{statistics.median(own):.1f} ({min(own):.1f} to {max(own):.1f})" for own in ratios.values())
    return table("trained | accuracy, mean (least to most) | memory, modelled", rows) + (
        f"\nFive seeds of {results['steps']:,} steps, rates chosen on another rotation. With engines of 20 ms, two "
        f"and four modules in threads are {two} and {four} times as fast as one, median and range of "
        f"{len(results['step_ms'])} rounds.\n"
    )
