"""Milliseconds per step of the pipeline, of backprop and of the plain forward gradient.

Every row trains the same model on the same batches with the same optimizer (SGD). Rounds are interleaved, so that
disturbances of the machine affect all rows; in each round a row continues its run for STEPS steps, so pipelines stay
full. Medians are the time of a step on this machine as it was, minima without disturbance, and the CPU time of the
whole process is the amount of work.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any

import torch

from benchmarks.asyncfgd.synthetic_models import SyntheticModel, convolutions, perceptron
from benchmarks.timing import RESULTS, machine
from wattune.algorithms import Step, open_algorithm
from wattune.files import write_json
from wattune.workloads.models import CharacterTransformer

STEPS = 20
"""Steps of a row in one round."""


@dataclass(frozen=True)
class Row:
    """An algorithm, and the number of threads that each of its operations may use."""

    name: str
    spec: str
    threads: int


ROWS = (
    Row("backprop, 1 thread", "backprop", 1),
    Row("backprop, 2 threads", "backprop", 2),
    Row("forward gradient, 1 thread", "forward-gradient", 1),
    Row("forward gradient, 2 threads", "forward-gradient", 2),
    Row("AsyncFGD K=2, one thread after another", "async-fgd:modules=2", 1),
    Row("AsyncFGD K=2, 2 threads", "async-fgd:modules=2,backend=threads", 1),
    Row("AsyncFGD K=3, 3 threads", "async-fgd:modules=3,backend=threads", 1),
    Row("AsyncFGD K=4, 4 threads", "async-fgd:modules=4,backend=threads", 1),
    Row("forward gradient of activities, 1 thread", "forward-gradient:perturb=activities", 1),
    Row("forward gradient of activities, 2 threads", "forward-gradient:perturb=activities", 2),
    Row("AsyncFGD of activities K=2, 2 threads", "async-fgd:modules=2,perturb=activities,backend=threads", 1),
)


MODELS = {
    "MLP 8x64, b 64": (SyntheticModel(lambda: perceptron(7, 64), (64,)), 64),
    "MLP 8x256, b 128": (SyntheticModel(lambda: perceptron(7, 256), (256,)), 128),
    "MLP 8x512, b 256": (SyntheticModel(lambda: perceptron(7, 512), (512,)), 256),
    "CNN 8x16 filters, 16x16, b 64": (SyntheticModel(lambda: convolutions(8, 16), (3, 16, 16)), 64),
    "transformer 4 x 64, 64 characters, b 16": (
        SyntheticModel(lambda: CharacterTransformer(layers=4, width=64, heads=4), (64,), 96, text=True),
        16,
    ),
}
"""Name -> model and batch size. All train by plain SGD."""


def timed(steps: Iterator[Step], row: Row, count: int) -> tuple[float, float]:
    """Seconds and CPU seconds per step."""
    torch.set_num_threads(row.threads)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    for _ in islice(steps, count):
        pass
    return (time.perf_counter() - begin) / count, (time.process_time() - begin_cpu) / count


def measure(model: SyntheticModel, batch_size: int, rows: tuple[Row, ...], rounds: int) -> list[dict[str, Any]]:
    """Measure every row for one model."""
    batch = model.example(batch_size)
    iterators: list[Iterator[Step]] = []
    times_by_row: list[list[tuple[float, float]]] = []
    for row in rows:
        torch.set_num_threads(row.threads)
        iterators.append(open_algorithm(row.spec, model, batch_size).run(repeat(batch)))
        timed(iterators[-1], row, 5)
        times_by_row.append([])
    for _ in range(rounds):
        for row, steps, times in zip(rows, iterators, times_by_row, strict=True):
            times.append(timed(steps, row, STEPS))
    return [
        {
            "algorithm": row.name,
            "median_ms": 1e3 * statistics.median(t for t, _ in times),
            "min_ms": 1e3 * min(t for t, _ in times),
            "min_cpu_ms": 1e3 * min(t for _, t in times),
            "round_ms": [round(1e3 * t, 4) for t, _ in times],
        }
        for row, times in zip(rows, times_by_row, strict=True)
    ]


def main(arguments: list[str]) -> None:
    """Measure all models and store the table; with arguments only the named ones, and nothing is stored."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks asyncfgd speed")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--model", default="", help="only models with this in their name")
    parser.add_argument("--row", default="", help="only rows with this in their name")
    given = parser.parse_args(arguments)
    threads = torch.get_num_threads()
    rows = tuple(row for row in ROWS if given.row in row.name)
    tables = {}
    for name, (model, batch_size) in MODELS.items():
        if given.model not in name:
            continue
        tables[name] = measure(model, batch_size, rows, given.rounds)
        print(name)
        for row in tables[name]:
            print(
                "  {algorithm:45s} median {median_ms:7.2f}  min {min_ms:7.2f}  cpu {min_cpu_ms:7.2f} ms".format(**row)
            )
    torch.set_num_threads(threads)
    if not given.model and not given.row:
        figures = {
            "benchmark": "asyncfgd_speed",
            "machine": {**machine(), "load": os.getloadavg()[0], "torch": torch.__version__},
            "steps": STEPS,
            "rounds": given.rounds,
            "ms_per_step": tables,
        }
        write_json(RESULTS / "asyncfgd_speed.json", figures)


def markdown(results: dict[str, Any]) -> str:
    """Medians and minima of each row, one column per model; speed-ups: the median over rounds, that of the minima."""
    tables = results["ms_per_step"]
    lines = [f"| ms per step | {' | '.join(tables)} |", f"|---|{'---|' * len(tables)}"]
    for place, row in enumerate(ROWS):
        own = [table[place] for table in tables.values()]
        shown = " | ".join(f"{one['median_ms']:.2f} ({one['min_ms']:.2f})" for one in own)
        lines.append(f"| {row.name} | {shown} |")
    plain, cut = "forward gradient, 1 thread", "AsyncFGD K=2, 2 threads"
    both = "forward gradient, 2 threads"

    def times(one: str, other: str) -> str:
        ratios = []
        for table in tables.values():
            by_name = {row["algorithm"]: row for row in table}
            rounds = zip(by_name[one]["round_ms"], by_name[other]["round_ms"], strict=True)
            least = by_name[one]["min_ms"] / by_name[other]["min_ms"]
            ratios.append(f"{statistics.median(a / b for a, b in rounds):.2f} ({least:.2f})")
        return " | ".join(ratios)

    lines.append(f"| **{cut}: speed-up over {plain}** | {times(plain, cut)} |")
    lines.append(f"| **{cut}: speed-up over {both}** | {times(both, cut)} |")
    return "\n".join(lines) + "\n"
