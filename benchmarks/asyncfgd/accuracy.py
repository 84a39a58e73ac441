"""Accuracy and samples to target of each algorithm on scikit-learn's digits: `python -m benchmarks accuracy`.

The learning rates were chosen at f7028ce, with another part of the digits than they are judged with; they fall linearly
to 0. The result also has the tasks that were measured at 15c7d7c at constant rates, by code that is in the history:
digits, characters and CIFAR-10.
"""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from benchmarks.asyncfgd.engines import spread
from benchmarks.tables.results import table
from benchmarks.timing import RESULTS, keep, measured_at
from wattune.algorithms import open_algorithm
from wattune.workloads import Data, OptimizerRule, Workload

BATCH, SEEDS, EVERY, SHARE = 64, (0, 1, 2), 25, 0.95
"""Samples of a step; seeds; steps between evaluations; the target as a share of backprop's accuracy."""

METHODS = {
    "backprop": ("backprop", 3e-3),
    "AsyncFGD, activities": ("async-fgd:directions=4,modules=4", 3e-3),
    "last layer by backprop, rest frozen": ("backprop:last=1", 1e-2),
}
"""Name, as in the table of feasibility -> spec, and learning rate. The last is what AsyncFGD's exact end is."""

OF_CONVOLUTIONS = {
    "backprop": ("backprop", 3e-3),
    "AsyncFGD, activities": ("async-fgd:alpha=0.1,directions=4,modules=4", 1e-2),
    "last block and layer by backprop, rest frozen": ("backprop:last=3", 3e-3),
}
"""The same for convolutions. Noise at the full rate can undo what the exact end learns."""


@functools.cache
def digits() -> Data:
    """Digits (n, 1, 8, 8), standardised: 1,077 to train and 360 to judge with."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x, y = torch.from_numpy(images[order]).float().reshape(-1, 1, 8, 8), torch.from_numpy(labels[order])
    x = (x - x[720:].mean()) / x[720:].std()
    return Data((x[720:], y[720:]), (x[360:720], y[360:720]))


def perceptron() -> nn.Module:
    """Three hidden layers of 32."""
    hidden = [part for _ in range(2) for part in (nn.Linear(32, 32), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), *hidden, nn.Linear(32, 10))


def convolutions() -> nn.Module:
    """Four normalised convolutions of 8 channels."""
    layers: list[nn.Module] = []
    for inputs in (1, 8, 8, 8):
        layers += [nn.Conv2d(inputs, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d((2, 4)), nn.Flatten(), nn.Linear(64, 10))


TASKS = {
    "digits, perceptron, falling rate": (perceptron, 1500, METHODS),
    "digits, convolutions, falling rate": (convolutions, 1000, OF_CONVOLUTIONS),
}
"""Name -> model, steps, and methods."""


def curve(model: Callable[[], nn.Module], steps: int, spec: str, rate: float, seed: int) -> list[float]:
    """Accuracy at each evaluation of a training run."""
    workload = Workload(
        "accuracy",
        model=model,
        data=digits(),
        batch_sizes=(BATCH,),
        budget_samples=steps * BATCH,
        optimizer=OptimizerRule("adam", learning_rate=rate, reference_batch_size=BATCH, scaling="none"),
    )
    algorithm = open_algorithm(spec, workload, BATCH, seed=seed)
    (group,) = algorithm._optimizer.param_groups
    found = []
    for step, _ in enumerate(algorithm.run(islice(workload.batches(BATCH, seed=seed), steps)), start=1):
        group["lr"] = rate * (1 - step / steps)
        if step % EVERY == 0:
            found.append(round(workload.evaluate(algorithm.module), 4))
    return found


def main(arguments: Sequence[str] = ()) -> None:
    """Train all on digits, and store accuracies and samples."""
    torch.set_num_threads(1)
    before = json.loads((RESULTS / "asyncfgd_accuracy.json").read_text())
    tasks = before["tasks"]
    for name, (model, steps, methods) in TASKS.items():
        own, target = {}, 0.0
        for algorithm, (spec, rate) in methods.items():
            curves = [curve(model, steps, spec, rate, seed) for seed in SEEDS]
            accuracies = [one[-1] for one in curves]
            target = target or SHARE * statistics.mean(accuracies)  # backprop comes first
            needed = [_samples(one, target) for one in curves]
            own[algorithm] = {"algorithm": spec, "learning_rate": rate, "accuracies": accuracies}
            own[algorithm]["samples_to_target"] = needed
            print(f"{name}: {algorithm}: {accuracies}, {needed}", flush=True)
        tasks[name] = {"steps": steps, "target": round(target, 4), "algorithms": own}
    where = before["measured_at"]
    where = {"falling rate": measured_at(), "constant rate": where.get("constant rate", where)}
    keep("asyncfgd_accuracy", {"measured_at": where, "batch_size": BATCH, "tasks": tasks})


def _samples(found: Sequence[float], target: float) -> int | None:
    at = next((place for place, accuracy in enumerate(found, start=1) if accuracy >= target), None)
    return None if at is None else at * EVERY * BATCH


def markdown(results: dict[str, Any]) -> str:
    """A row for each task and algorithm."""
    rows = []
    for name in TASKS:
        task = results["tasks"][name]
        backprops = statistics.mean(task["algorithms"]["backprop"]["samples_to_target"])
        for algorithm, one in task["algorithms"].items():
            needed = one["samples_to_target"]
            reached = [samples for samples in needed if samples is not None]
            ratio = f"{statistics.mean(reached) / backprops:.2f}" if len(reached) == len(needed) else ""
            shown = ratio or f"{len(reached)} of {len(needed)} seeds reach the target"
            rows.append((name, algorithm, spread(one["accuracies"]), shown))
    steps = " and ".join(f"{results['tasks'][name]['steps']:,}" for name in TASKS)
    text = table("task | algorithm | accuracy, mean (least to most) | samples relative to backprop", rows)
    return f"{text}\nThree seeds of {steps} steps of {results['batch_size']} samples.\n"
