"""Accuracy and samples to target of each algorithm, on digits and photographs: `python -m benchmarks accuracy FOLDER`.

FOLDER has `cifar10_12k` with a `train.npz` and a `test.npz`. Each algorithm's learning rate is chosen with another part
of the data and other first weights than it is judged with; it falls linearly to 0.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from benchmarks.asyncfgd.engines import spread
from benchmarks.timing import keep
from wattune.algorithms import open_algorithm
from wattune.errors import InputError
from wattune.workloads import Data, OptimizerRule, Workload
from wattune.workloads.npz import Npz

BATCH, SEEDS, EVERY, SHARE = 64, (0, 1, 2), 25, 0.95
"""Samples of a step; seeds to judge with; steps between evaluations; the target as a share of backprop's accuracy."""

RATES = (("", 1e-2), ("", 3e-3))
SLOWER_BELOW = ((",alpha=0.1", 1e-2), (",alpha=0.3", 3e-3))
"""Candidates: options to append, and the learning rate. Noise at the full rate can undo what the exact end learns."""

CANDIDATES = {
    "backprop": ("backprop", RATES),
    "forward gradient": ("forward-gradient", RATES),
    "forward gradient, activities": ("forward-gradient:perturb=activities", SLOWER_BELOW),
    "AsyncFGD": ("async-fgd:modules=4,perturb=weights", RATES),
    "AsyncFGD, activities": ("async-fgd:directions=4,modules=4", (RATES[1], *SLOWER_BELOW)),
    "last layer by backprop, rest frozen": ("backprop:last=1", RATES),
    "last block and layer by backprop, rest frozen": ("backprop:last={block}", RATES),
}
"""Name, as in the table of feasibility -> spec, and candidates."""

Pair = tuple[Tensor, Tensor]


class Task(NamedTuple):
    """A model with its data, to train, to choose by and to judge with. ``block``: trained layers of block and head."""

    model: Callable[[], nn.Module]
    data: tuple[Pair, Pair, Pair]
    steps: int
    block: int


def convolution(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    """A convolution with normalisation of groups of four channels."""
    return [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.GroupNorm(outputs // 4, outputs), nn.ReLU()]


def digits() -> tuple[Pair, Pair, Pair]:
    """Scikit-learn's digits (n, 1, 8, 8), standardised: 1,077, 360 and 360."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x, y = torch.from_numpy(images[order]).float().reshape(-1, 1, 8, 8), torch.from_numpy(labels[order])
    x = (x - x[720:].mean()) / x[720:].std()
    return (x[720:], y[720:]), (x[:360], y[:360]), (x[360:720], y[360:720])


def perceptron() -> nn.Module:
    """Three hidden layers of 32."""
    hidden = [part for _ in range(2) for part in (nn.Linear(32, 32), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), *hidden, nn.Linear(32, 10))


def convolutions(channels: int, stride: int = 1) -> nn.Module:
    """Four convolutions of 8 channels, the first three with this stride."""
    layers = [part for inputs in (channels, 8, 8) for part in convolution(inputs, 8, stride)] + convolution(8, 8)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d((2, 4)), nn.Flatten(), nn.Linear(64, 10))


def photographs(folder: Path) -> tuple[Pair, Pair, Pair]:
    """CIFAR-10 (n, 3, 32, 32), standardised: 10,000, 1,000 and 1,000."""
    read = Npz(folder / "cifar10_12k" / "train.npz", folder / "cifar10_12k" / "test.npz")()
    (x, y), (tests, labels) = read.train, read.test
    x, tests = ((part.float() / 255 - 0.47) / 0.25 for part in (x, tests))
    return (x[:10_000], y[:10_000]), (x[10_000:11_000], y[10_000:11_000]), (tests[:1000], labels[:1000])


def curve(task: Task, spec: str, rate: float, seed: int, *, judge: bool) -> list[float]:
    """Accuracy at each evaluation of a training run."""
    workload = Workload(
        "accuracy",
        model=task.model,
        data=Data(task.data[0], task.data[2 if judge else 1]),
        batch_sizes=(BATCH,),
        budget_samples=task.steps * BATCH,
        optimizer=OptimizerRule("adam", learning_rate=rate, reference_batch_size=BATCH, scaling="none"),
    )
    algorithm = open_algorithm(spec, workload, BATCH, seed=seed)
    (group,) = algorithm._optimizer.param_groups
    found = []
    for step, _ in enumerate(algorithm.run(islice(workload.batches(BATCH, seed=seed), task.steps)), start=1):
        group["lr"] = rate * (1 - step / task.steps)
        if step % EVERY == 0:
            found.append(round(workload.evaluate(algorithm.module), 4))
    return found


def trained(task: Task, spec: str, candidates: Sequence[tuple[str, float]]) -> dict[str, Any]:
    """Choose among the candidates, and train with each seed."""
    spec = spec.format(block=task.block)
    chosen_from = {one: curve(task, spec + one[0], one[1], len(SEEDS), judge=False)[-1] for one in candidates}
    more, rate = max(chosen_from, key=chosen_from.__getitem__)
    curves = [curve(task, spec + more, rate, seed, judge=True) for seed in SEEDS]
    return {
        "algorithm": spec + more,
        "learning_rate": rate,
        "chosen_from": {f"{rate:g}{more}": accuracy for (more, rate), accuracy in chosen_from.items()},
        "accuracies": [one[-1] for one in curves],
        "curves": curves,
    }


def main(arguments: Sequence[str] = ()) -> None:
    """Train all, and store accuracies and samples. Raises: InputError without a folder."""
    if len(arguments) != 1:
        raise InputError("arguments of accuracy", value=" ".join(arguments), allowed="a folder of data")
    torch.set_num_threads(1)
    tasks = {
        "digits, perceptron": Task(perceptron, digits(), steps=1500, block=2),
        "digits, convolutions": Task(lambda: convolutions(1), digits(), steps=1000, block=3),
        "photographs, convolutions": Task(lambda: convolutions(3, 2), photographs(Path(arguments[0])), 600, block=3),
    }
    results = {}
    for name, task in tasks.items():
        own = {}
        for algorithm, (spec, candidates) in CANDIDATES.items():
            own[algorithm] = trained(task, spec, candidates)
            print(f"{name}: {algorithm}: {own[algorithm]['accuracies']}", flush=True)
        target = SHARE * statistics.mean(own["backprop"]["accuracies"])
        for one in own.values():
            one["samples_to_target"] = [_samples(found, target) for found in one.pop("curves")]
        results[name] = {"steps": task.steps, "target": round(target, 4), "algorithms": own}
        keep("asyncfgd_accuracy", {"batch_size": BATCH, "tasks": results})


def _samples(found: Sequence[float], target: float) -> int | None:
    at = next((place for place, accuracy in enumerate(found, start=1) if accuracy >= target), None)
    return None if at is None else at * EVERY * BATCH


def markdown(results: dict[str, Any]) -> str:
    """A row for each task and algorithm."""
    lines = [
        "| task | algorithm | accuracy, mean (least to most) | samples relative to backprop |",
        "|---|---|---|---|",
    ]
    for name, task in results["tasks"].items():
        backprops = statistics.mean(task["algorithms"]["backprop"]["samples_to_target"])
        for algorithm, one in task["algorithms"].items():
            needed = one["samples_to_target"]
            reached = [samples for samples in needed if samples is not None]
            ratio = f"{statistics.mean(reached) / backprops:.2f}" if len(reached) == len(needed) else ""
            shown = ratio or f"{len(reached)} of {len(needed)} seeds reach the target"
            lines.append(f"| {name} | {algorithm} | {spread(one['accuracies'])} | {shown} |")
    steps = ", ".join(f"{task['steps']:,}" for task in results["tasks"].values())
    return "\n".join(lines) + f"\n\nThree seeds of {steps} steps of {results['batch_size']} samples.\n"
