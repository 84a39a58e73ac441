"""Four engines without a backward pass, adapted to turned digits: `python -m benchmarks engines`. See the example."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice, product
from multiprocessing import get_context
from typing import Any

import torch

from benchmarks.timing import ROOT, keep
from wattune.algorithms import open_algorithm

sys.path.insert(0, str(ROOT / "examples" / "engines"))
from engines import BATCH, METHODS, accuracy, workload

STEPS, SEEDS, RATES = 8000, range(5), (1e-3, 3e-3, 1e-2, 3e-2)
JUDGED, TUNED, TUNED_SEED = 1, 3, 10
"""Quarter turns of the digits that are judged on, and of those that the rates are chosen on."""

CUTS = {1: "7", 2: "4/7", 4: "2/4/6/7"}
"""Modules with engines -> where they end; the exact end, without an engine, is a module of its own."""

WAIT_S, TIMED, ROUNDS = 0.02, 20, 5


def _accuracy(run: tuple[str, float, int, int]) -> float:
    name, rate, seed, quarter_turns = run
    torch.set_num_threads(1)
    return accuracy(name, rate=rate, seed=seed, quarter_turns=quarter_turns, steps=STEPS)


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
    results: dict[str, Any] = {"steps": STEPS, "step_ms": rounds, "methods": {}}
    with ProcessPoolExecutor(int(arguments[0]) if arguments else 1, mp_context=get_context("spawn")) as pool:
        tried = list(product(METHODS, RATES))
        tuned = dict(zip(tried, pool.map(_accuracy, [(*one, TUNED_SEED, TUNED) for one in tried]), strict=True))
        rates = {name: max(RATES, key=lambda rate, n=name: tuned[n, rate]) for name in METHODS}  # type: ignore[misc]
        runs = [(name, rates[name], seed, JUDGED) for name, seed in product(METHODS, SEEDS)]
        found = list(pool.map(_accuracy, runs))
    for name, (spec, _) in METHODS.items():
        own = [value for run, value in zip(runs, found, strict=True) if run[0] == name]
        work = open_algorithm(spec, workload(0, JUDGED, 1e-3, twin=name == "twin"), BATCH).work()
        figures = {"algorithm": spec, "rate": rates[name], "accuracies": own, "bytes": work.peak_memory_bytes}
        results["methods"][name] = {**figures, "tuned": {str(rate): tuned[name, rate] for rate in RATES}}
    keep("asyncfgd_engines", results)


def markdown(results: dict[str, Any]) -> str:
    """The results as a table, and the times of a step as ratios."""
    lines = ["| trained | accuracy, mean (least to most) | memory, modelled |", "|---|---|---|"]
    for name, one in results["methods"].items():
        values = one["accuracies"]
        spread = f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
        lines.append(f"| {name} | {spread} | {one['bytes'] / 1000:.0f} kB |")
    ratios = {k: [each["1"] / each[k] for each in results["step_ms"]] for k in ("2", "4")}
    two, four = (f"{statistics.median(own):.1f} ({min(own):.1f} to {max(own):.1f})" for own in ratios.values())
    return "\n".join(lines) + (
        f"\n\nFive seeds of {results['steps']:,} steps, rates chosen on another rotation. With engines of 20 ms, two "
        f"and four modules in threads are {two} and {four} times as fast as one, median and range of "
        f"{len(results['step_ms'])} rounds.\n"
    )
