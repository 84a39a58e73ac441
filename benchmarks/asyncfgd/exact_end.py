"""AsyncFGD with perturbed activities against its hardest control: its exact last module alone, the rest frozen.

`python -m benchmarks asyncfgd exact_end`. Each algorithm gets two candidates of learning rate (and alpha), chosen on
one part of the data with seed 0, and is judged on another with three seeds. The rate falls linearly to 0, for all.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.asyncfgd.tasks import BATCH, WORK, Task, tasks
from benchmarks.timing import RESULTS, machine
from wattune.algorithms import open_algorithm
from wattune.files import write_json

RESULT = RESULTS / "asyncfgd_exact_end.json"
SEEDS = (0, 1, 2)
RATES = (3e-3, 1e-2)
EVERY = 25
"""Steps between two evaluations."""

SHARE = 0.95
"""Target of "samples to target", as a share of backprop's accuracy."""


class Row(NamedTuple):
    """An algorithm with its candidates: (learning rate, options to append to the spec)."""

    name: str
    spec: str
    candidates: Sequence[tuple[float, str]] = tuple((rate, "") for rate in RATES)


def _async(modules: int, directions: int) -> str:
    return f"async-fgd:directions={directions},modules={modules},perturb=activities"


SLOWER_BELOW = ((3e-3, ",alpha=0.3"), (1e-2, ",alpha=0.1"))
"""Smaller rates below the exact end: of convolutions at the full rate, the noise does more harm than learning helps."""

ROWS = {
    "digits, convolutions": (
        1000,
        (
            Row("backprop", "backprop"),
            Row("last layer by backprop, rest frozen", "backprop:last=1"),
            Row("last block and layer by backprop, rest frozen (control)", "backprop:last=3"),
            Row("AsyncFGD, K = 4, 1 direction", _async(4, 1), SLOWER_BELOW),
            Row("AsyncFGD, K = 4, 4 directions", _async(4, 4), SLOWER_BELOW),
        ),
    ),
    "digits, perceptron": (
        1500,
        (
            Row("backprop", "backprop"),
            Row("last layer by backprop, rest frozen (control)", "backprop:last=1"),
            Row("last two layers by backprop, rest frozen", "backprop:last=2"),
            Row("AsyncFGD, K = 4, 1 direction", _async(4, 1)),
            Row("AsyncFGD, K = 4, 4 directions", _async(4, 4)),
        ),
    ),
}
"""Task -> its steps, and the algorithms. The control trains what is AsyncFGD's last module, and nothing else."""


def trained(task: Task, spec: str, rate: float, steps: int, *, seed: int, judge: bool) -> dict[str, Any]:
    """Accuracy at every evaluation, and CPU milliseconds per step."""
    workload = task.workload(Path(), rate, judge=judge)
    algorithm = open_algorithm(spec, workload, BATCH, seed=seed)
    optimizer: torch.optim.Optimizer = algorithm._optimizer  # type: ignore[attr-defined]
    curve, taken_s, start = [], 0.0, time.process_time()
    for step, done in enumerate(islice(algorithm.run(workload.batches(BATCH, seed=seed)), steps), start=1):
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - step / steps)
        if step % EVERY == 0:
            taken_s += time.process_time() - start
            curve.append(round(workload.evaluate(algorithm.module), 4))
            start = time.process_time()
        assert math.isfinite(done.loss)
    return {"curve": curve, "step_ms": round(1000 * taken_s / steps, 2)}


def measured(task: Task, row: Row, steps: int) -> dict[str, Any]:
    """The chosen candidate, and its runs."""
    chosen_from = {
        f"{rate:g}{options}": trained(task, row.spec + options, rate, steps, seed=0, judge=False)["curve"][-1]
        for rate, options in row.candidates
    }
    rate, options = max(row.candidates, key=lambda candidate: chosen_from[f"{candidate[0]:g}{candidate[1]}"])
    runs = [trained(task, row.spec + options, rate, steps, seed=seed, judge=True) for seed in SEEDS]
    accuracies = [run["curve"][-1] for run in runs]
    print(f"{task.name}: {row.name}: {accuracies} at {rate:g}{options}", flush=True)
    return {
        "algorithm": row.spec + options,
        "learning_rate": rate,
        "chosen_from": chosen_from,
        "accuracies": accuracies,
        "curves": [run["curve"] for run in runs],
        "step_ms": statistics.median(run["step_ms"] for run in runs),
    }


def stored(task: Task, row: Row, steps: int) -> dict[str, Any]:
    """The row's result from the work folder, measured now if it is not there."""
    path = WORK / f"exact_end; {task.name}; {row.name}.json".replace(" ", "_").replace(",", "")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, measured(task, row, steps))
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def main() -> None:
    """Measure all rows and write the summary."""
    torch.set_num_threads(1)
    results = {}
    for task in tasks(None):
        steps, rows = ROWS[task.name]
        own = {row.name: stored(task, row, steps) for row in rows}
        target = SHARE * statistics.mean(own["backprop"]["accuracies"])
        for result in own.values():
            result["samples_to_target"] = [_samples(curve, target) for curve in result["curves"]]
        results[task.name] = {"steps": steps, "target": round(target, 4), "algorithms": own}
    write_json(RESULT, {"benchmark": "asyncfgd exact_end", "machine": machine(), "batch_size": BATCH, "tasks": results})


def _samples(curve: Sequence[float], target: float) -> int | None:
    """Samples until the accuracy reaches the target; None if it never does."""
    at = next((place for place, value in enumerate(curve, start=1) if value >= target), None)
    return None if at is None else at * EVERY * BATCH


def markdown(results: dict[str, Any]) -> str:
    """A table for each task."""
    lines = []
    for name, task in results["tasks"].items():
        own = task["algorithms"]
        control = next(one for algorithm, one in own.items() if "(control)" in algorithm)
        lines += [
            f"**{name}**: {task['steps']:,} steps of {results['batch_size']} samples; the target is "
            f"{task['target']:.3f}.",
            "",
            "| algorithm | options | learning rate | accuracy, mean of 3 seeds (each) | gain over the control "
            "| samples to target (relative to backprop) | ms per step |",
            "|---|---|---|---|---|---|---|",
        ]
        for algorithm, one in own.items():
            each = ", ".join(f"{accuracy:.3f}" for accuracy in one["accuracies"])
            gained = gain(one, control) if algorithm.startswith("AsyncFGD") else ""
            lines.append(
                f"| {algorithm} | `{one['algorithm']}` | {one['learning_rate']:g} "
                f"| {statistics.mean(one['accuracies']):.3f} ({each}) | {gained} "
                f"| {_relative(one, own['backprop'])} | {one['step_ms']:.1f} |"
            )
        lines.append("")
    return "\n".join(lines)


def gain(one: dict[str, Any], control: dict[str, Any]) -> str:
    """Mean difference of equal seeds, with its standard error."""
    differences = [a - b for a, b in zip(one["accuracies"], control["accuracies"], strict=True)]
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return f"{statistics.mean(differences):+.3f} ± {error:.3f}"


def _relative(one: dict[str, Any], backprop: dict[str, Any]) -> str:
    reached = [samples for samples in one["samples_to_target"] if samples is not None]
    if len(reached) < len(SEEDS):
        return f"{len(reached)} of {len(SEEDS)} seeds reach it"
    return f"{statistics.mean(reached):,.0f} ({statistics.mean(reached) / _mean(backprop):.2f}x)"


def _mean(backprop: dict[str, Any]) -> float:
    return statistics.mean(samples for samples in backprop["samples_to_target"] if samples is not None)
