"""Milliseconds per step of the pipeline beside those of backprop and of the plain forward gradient.

Every row trains the same model on the same batches with the same optimizer (SGD). Rounds are interleaved, so that
whatever disturbs the machine disturbs all rows; in each a row goes on with its training for STEPS steps, so pipelines
stay full. Medians say what a step takes on this machine as it was, minima what it takes when nothing disturbs it, and
the processor time of the whole process how much work it is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.timing import RESULTS, machine
from wattune.algorithms import Step, open_algorithm
from wattune.files import write_json
from wattune.workloads.models import CharacterTransformer

STEPS = 20
"""Steps of a row in one round."""


@dataclass(frozen=True)
class Row:
    """An algorithm, and how many threads one operation of it may use."""

    name: str
    spec: str
    threads: int


ROWS = (
    Row("backprop, 1 thread", "backprop", 1),
    Row("backprop, 2 threads", "backprop", 2),
    Row("forward gradient, 1 thread", "forward-gradient", 1),
    Row("forward gradient, 2 threads", "forward-gradient", 2),
    Row("AsyncFGD K=2, one thread after another", "async-fgd:modules=2,cuts=measured", 1),
    Row("AsyncFGD K=2, 2 threads", "async-fgd:modules=2,backend=threads,cuts=measured", 1),
    Row("AsyncFGD K=3, 3 threads", "async-fgd:modules=3,backend=threads,cuts=measured", 1),
    Row("AsyncFGD K=4, 4 threads", "async-fgd:modules=4,backend=threads,cuts=measured", 1),
    Row("forward gradient of activities, 1 thread", "forward-gradient:perturb=activities", 1),
    Row("forward gradient of activities, 2 threads", "forward-gradient:perturb=activities", 2),
    Row("AsyncFGD of activities K=2, 2 threads", "async-fgd:modules=2,perturb=activities,backend=threads", 1),
    Row("AsyncFGD of local losses K=2, 2 threads", "async-fgd:modules=2,loss=local,backend=threads", 1),
)


class Model:
    """Something to train whose batches are made up."""

    data_type = "fp32"
    host_s_per_sample = 0.0

    def __init__(self, build: Callable[[], nn.Module], shape: tuple[int, ...], classes: int, batch_size: int):
        self.build, self.shape, self.classes, self.batch_size = build, shape, classes, batch_size

    def model(self, seed: int) -> nn.Module:
        """Its initial weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.build()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross entropy."""
        return F.cross_entropy(output.flatten(0, -2), target.flatten())

    def optimizer(self, model: nn.Module, batch_size: int) -> torch.optim.Optimizer:
        """Plain SGD, so slow that nothing grows."""
        return torch.optim.SGD(model.parameters(), lr=1e-6)

    def example(self, batch_size: int) -> tuple[Any, Any]:
        """A batch; texts where ``shape`` is empty."""
        generator = torch.Generator().manual_seed(0)
        if not self.shape:
            text = torch.randint(0, self.classes, (batch_size, 65), generator=generator)
            return text[:, :-1].contiguous(), text[:, 1:].contiguous()
        x = torch.randn(batch_size, *self.shape, generator=generator)
        return x, torch.randint(0, self.classes, (batch_size,), generator=generator)


def perceptron(depth: int, width: int) -> nn.Module:
    """So many linear layers of this width."""
    inner = [part for _ in range(depth - 1) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*inner, nn.Linear(width, 10))


def convolutions(depth: int, filters: int) -> nn.Module:
    """So many 3x3 convolutions and a linear head."""
    first = nn.Conv2d(3, filters, 3, padding=1)
    inner = [part for _ in range(depth - 1) for part in (nn.ReLU(), nn.Conv2d(filters, filters, 3, padding=1))]
    return nn.Sequential(first, *inner, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(filters, 10))


MODELS = {
    "MLP 8x64, b 64": Model(lambda: perceptron(8, 64), (64,), 10, 64),
    "MLP 8x256, b 128": Model(lambda: perceptron(8, 256), (256,), 10, 128),
    "MLP 8x512, b 256": Model(lambda: perceptron(8, 512), (512,), 10, 256),
    "CNN 8x16 filters, 16x16, b 64": Model(lambda: convolutions(8, 16), (3, 16, 16), 10, 64),
    "transformer 4 x 64, 64 characters, b 16": Model(
        lambda: CharacterTransformer(layers=4, width=64, heads=4), (), 96, 16
    ),
}


def timed(steps: Iterator[Step], row: Row, count: int) -> tuple[float, float]:
    """Seconds and processor seconds of a step."""
    torch.set_num_threads(row.threads)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    for _ in islice(steps, count):
        pass
    return (time.perf_counter() - begin) / count, (time.process_time() - begin_cpu) / count


def measure(model: Model, rows: tuple[Row, ...], rounds: int) -> list[dict[str, Any]]:
    """Every row of one model."""
    batch = model.example(model.batch_size)
    trainings: list[Iterator[Step]] = []
    found: list[list[tuple[float, float]]] = []
    for row in rows:
        torch.set_num_threads(row.threads)
        trainings.append(open_algorithm(row.spec, model, model.batch_size).run(repeat(batch)))
        timed(trainings[-1], row, 5)
        found.append([])
    for _ in range(rounds):
        for row, steps, times in zip(rows, trainings, found, strict=True):
            times.append(timed(steps, row, STEPS))
    return [
        {
            "algorithm": row.name,
            "median_ms": 1e3 * statistics.median(t for t, _ in times),
            "min_ms": 1e3 * min(t for t, _ in times),
            "min_cpu_ms": 1e3 * min(t for _, t in times),
        }
        for row, times in zip(rows, found, strict=True)
    ]


def main(arguments: list[str]) -> None:
    """Measure all models and keep the table; with arguments only what they name, and nothing is kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks asyncfgd speed")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--model", default="", help="only models with this in their name")
    parser.add_argument("--row", default="", help="only rows with this in their name")
    given = parser.parse_args(arguments)
    threads = torch.get_num_threads()
    rows = tuple(row for row in ROWS if given.row in row.name)
    tables = {}
    for name, model in MODELS.items():
        if given.model not in name:
            continue
        tables[name] = measure(model, rows, given.rounds)
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


def markdown(found: dict[str, Any]) -> str:
    """Medians and minima of each row, a column for each model."""
    tables = found["ms_per_step"]
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
            by_name = {row["algorithm"]: row["median_ms"] for row in table}
            ratios.append(f"{by_name[one] / by_name[other]:.2f}")
        return " | ".join(ratios)

    lines.append(f"| **{cut}: times as fast as the {plain}** | {times(plain, cut)} |")
    lines.append(f"| **the same, {both}** | {times(both, cut)} |")
    return "\n".join(lines) + "\n"
