"""Cost of staleness alone: the training loss by the number of modules, at the same step size.

With more modules, the first one works on older parameters; everything else stays the same, the distribution of the
directions included. Plain SGD, so that no adaptive optimizer compensates.
`python -m benchmarks asyncfgd staleness`.
"""

from __future__ import annotations

import statistics
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.asyncfgd.tasks import BATCH, digits
from benchmarks.timing import RESULTS, machine
from wattune.algorithms import open_algorithm
from wattune.files import write_json
from wattune.workloads import Data, OptimizerRule, Workload

MODULES = (1, 2, 4, 8)
RATES = (1e-3,)
STEPS, LAST = 3000, 200
SEEDS = (0, 1, 2, 3, 4)
RESULT = RESULTS / "asyncfgd_staleness.json"


def network() -> nn.Module:
    """Network of eight hidden layers of 32 for the digits, each with its own normalisation, that can be cut into eight
    modules."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(64, 32), nn.LayerNorm(32), nn.ReLU()]
    for _ in range(7):
        layers += [nn.Linear(32, 32), nn.LayerNorm(32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, 10))


def final_loss(modules: int, rate: float, seed: int) -> float:
    """Mean training loss of the last steps; infinite if the run diverged."""
    parts = digits(Path())
    workload = Workload(
        "digits, deep perceptron",
        model=network,
        data=Data(parts.train, parts.choose),
        batch_sizes=(BATCH,),
        budget_samples=STEPS * BATCH,
        optimizer=OptimizerRule("sgd", learning_rate=rate, reference_batch_size=BATCH, scaling="none"),
    )
    algorithm = open_algorithm(f"async-fgd:modules={modules}", workload, BATCH, seed=seed)
    losses = [step.loss for step in algorithm.run(islice(workload.batches(BATCH, seed=seed), STEPS))]
    mean = statistics.mean(losses[-LAST:])
    return mean if mean < 1e6 else float("inf")


def measured() -> list[dict[str, Any]]:
    """Measure each step size and number of modules: one row each."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for rate in RATES:
        for modules in MODULES:
            losses = [final_loss(modules, rate, seed) for seed in SEEDS]
            rows.append(
                {
                    "learning_rate": rate,
                    "modules": modules,
                    "staleness": modules - 1,
                    "loss": round(statistics.mean(losses), 4),
                    "standard_error": round(statistics.stdev(losses) / len(losses) ** 0.5, 4),
                    "losses": [round(loss, 4) for loss in losses],
                }
            )
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, and store the results."""
    write_json(RESULT, {"benchmark": "asyncfgd staleness", "machine": machine(), "steps": STEPS, "rows": measured()})


def markdown(results: dict[str, Any]) -> str:
    """Loss by staleness, one row per step size."""
    rows = results["rows"]
    lines = [
        f"| step size | {' | '.join(f'K = {modules}' for modules in MODULES)} |",
        f"|---|{'---|' * len(MODULES)}",
    ]
    for rate in RATES:
        own = {row["modules"]: row for row in rows if row["learning_rate"] == rate}
        shown = " | ".join(f"{own[m]['loss']:.3f} ± {own[m]['standard_error']:.3f}" for m in MODULES)
        lines.append(f"| {rate:g} | {shown} |")
    return "\n".join(lines) + "\n"
