"""Batch sizes chosen for MLPerf's reference runs: seven benchmarks, their recipes tuned at each batch size.

Source: MLCommons, github.com/mlcommons/logging, ``rcp_checker`` (Apache-2.0). Runs are comparable within one benchmark
and round alone, so the round with the most batch sizes stands for its benchmark. Nothing is tuned on them: the
estimator is the one of every other part.

A device takes a + c b seconds for a step of b samples, with a / c drawn log-uniformly over the batch sizes, and its
user trains at one of them, drawn. Each device has the runs in an order of its own. The medians of all runs are
the truth.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.decisions.estimators import Bank, Decision, covered, largest, ours, raw_means, regret
from benchmarks.decisions.scoring import regrets
from benchmarks.decisions.sweeps import Run, Runs

DEVICES = 400
"""Devices for each benchmark."""

FEWEST = 4
"""Batch sizes below which a benchmark tells nothing about a choice among them."""

Times = dict[int, float]


def read(folder: Path) -> dict[str, dict[int, list[Run]]]:
    """Benchmark -> batch size -> its runs, of the round with the most batch sizes."""
    rounds: dict[tuple[str, str], dict[int, list[Run]]] = {}
    with (folder / "runs.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            runs = rounds.setdefault((row["benchmark"], row["round"]), {})
            of_size = runs.setdefault(int(row["batch_size"]), [])
            of_size.append(Run(float(row["to_converge"]), True, int(row["seed"])))
    best: dict[str, dict[int, list[Run]]] = {}
    for (benchmark, _), runs in sorted(rounds.items()):
        medians = [median(run.samples for run in some) for some in runs.values()]
        if max(medians) > 100 * min(medians):
            raise ValueError(f"{benchmark}: epochs beside samples in one round")
        if len(runs) >= max(FEWEST, 1 + len(best.get(benchmark, ()))):
            best[benchmark] = dict(sorted(runs.items()))
    return best


def device(sizes: Sequence[int], draw: random.Random) -> Times:
    """Seconds per sample of a device, by batch size."""
    half_busy = math.exp(draw.uniform(math.log(sizes[0]), math.log(sizes[-1])))
    return {size: (half_busy + size) / size for size in sizes}


def cases(folder: Path) -> list[dict[str, Any]]:
    """All methods on all devices, one row each."""
    rows: list[dict[str, Any]] = []
    for benchmark, recorded in read(folder).items():
        true = {size: median(run.samples for run in runs) for size, runs in recorded.items()}
        spacing = _spacing(recorded)
        for number in range(DEVICES):
            draw = random.Random(f"{benchmark} {number}")
            times, own = device(list(recorded), draw), draw.choice(list(recorded))
            runs = {size: draw.sample(some, len(some)) for size, some in recorded.items()}
            for way, choose in ways(own, spacing).items():
                bank = Bank(runs)
                decision = choose(bank, times)
                rows.append(
                    {
                        "way": way,
                        "benchmark": benchmark,
                        "regret": regret(decision, times, true),
                        "over_own": times[decision.batch_size] * true[decision.batch_size] / (times[own] * true[own])
                        - 1
                        if decision.batch_size is not None
                        else math.nan,
                        "runs": len(bank.made),
                        "covered": covered(decision, true),
                    }
                )
    return rows


def ways(own: int, spacing: float) -> dict[str, Callable[[Bank, Times], Decision]]:
    """The methods by name."""
    return {
        "largest": lambda bank, times: largest(times),
        "own": lambda bank, times: Decision(own),
        "ours": lambda bank, times: ours(bank, times, own=own, spacing=spacing, whole=True),
        "ours, two runs": lambda bank, times: ours(bank, times, spacing=spacing, whole=True, most=2),
        "one run at each size": lambda bank, times: raw_means(bank, times, seeds=1),
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of every method; the cases of a benchmark count as one group."""
    summaries: dict[str, Any] = {}
    for way in dict.fromkeys(row["way"] for row in rows):
        some = [row for row in rows if row["way"] == way]
        inside = [one for row in some for one in row["covered"]]
        summaries[way] = {
            **regrets([row["regret"] for row in some], [row["benchmark"] for row in some]),
            "runs_mean": round(float(np.mean([row["runs"] for row in some])), 2),
            "slower_than_own": round(float(np.mean([row["over_own"] > 1e-9 for row in some])), 4),
        }
        if inside:
            summaries[way]["coverage"] = round(float(np.mean(inside)), 4)
    return summaries


def _spacing(recorded: Runs) -> float:
    """Epochs or samples between evaluations: the smallest step between the runs' results."""
    results = sorted({run.samples for runs in recorded.values() for run in runs})
    return min((after - before for before, after in pairwise(results)), default=0.0)
