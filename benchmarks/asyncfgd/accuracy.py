"""How well and how fast each algorithm learns: learning rates picked on one part of the data, three seeds on another.

Each algorithm gets the paper's grid of learning rates, widened by half decades, and successive halving: all rates for
an eighth of the steps, the best three to a quarter, the best two to the half. Source of the grid and the batch size:
Zhao et al., AsyncFGD, NeurIPS 2023, section 6.

The noise of an estimated gradient does not end at a constant rate: beside the accuracy of the last weights stands that
of the mean of the weights over the last quarter of the steps (Polyak and Juditsky 1992), for all algorithms alike.

What is finished is kept in the work folder, for each task and algorithm one file of its rate and one of its trainings.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.optim.swa_utils import AveragedModel

from benchmarks.asyncfgd.tasks import BATCH, FINE_TUNING_SAMPLES, WORK, Task, perceptron, tasks
from benchmarks.timing import RESULTS, machine
from wattune.algorithms import TrainingAlgorithm, open_algorithm
from wattune.files import write_json

RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
SEEDS = (0, 1, 2)
LAST = 3
"""Evaluations whose mean counts as the final accuracy: one alone is a matter of luck, the best one a choice."""

ABLATIONS = dict.fromkeys(("AsyncFGD, alpha 0.15 below the head", "AsyncFGD, alpha rising after 10 epochs"), "AsyncFGD")
"""Trained at the learning rate of another: its own could not be picked before the layers below the head have begun."""

AVERAGED, AVERAGED_EVERY = 0.25, 5
"""The last share of the steps whose weights are averaged, and of how many steps the weights of one count."""

SHARE_OF_BACKPROP = 0.95
"""The target of "samples to target": this share of what backprop reaches in the end, which is below it for all."""

RESULT = RESULTS / "asyncfgd_accuracy.json"


def algorithms(task: Task) -> dict[str, str]:
    """Name in the table -> spec, for this task. A pipeline of one module is the synchronous algorithm."""
    found = {
        "backprop": "backprop",
        "forward gradient": "forward-gradient",
        "forward gradient, activities": "forward-gradient:perturb=activities",
    }
    if task.cut > 1:
        cut = f"async-fgd:modules={task.cut}"
        found |= {
            "forward gradient, local losses": f"{cut},loss=local",
            "AsyncFGD": cut,
            "AsyncFGD, activities": f"{cut},perturb=activities",
        }
    if task.fine_tuning:
        found["forward gradient, 8 directions"] = "forward-gradient:directions=8"
    if task.fine_tuning and task.cut == 1:
        found["forward gradient, activities, 4 directions"] = "forward-gradient:directions=4,perturb=activities"
    if task.fine_tuning and task.cut > 1:
        constant, rising = ABLATIONS
        found[constant] = f"async-fgd:modules={task.cut},alpha=0.15"
        found[rising] = f"async-fgd:modules={task.cut},alpha=0.15,epoch_samples={FINE_TUNING_SAMPLES}"
    if task.model is perceptron:  # the one that is quick enough for every combination
        found["AsyncFGD, activities, local losses"] = f"async-fgd:modules={task.cut},loss=local,perturb=activities"
    return found


class Training:
    """One training that can be taken further: accuracies at each evaluation so far."""

    def __init__(self, task: Task, spec: str, data: Path | None, rate: float, *, seed: int, judge: bool):
        self.task, self.rate = task, rate
        self.workload = task.workload(data or Path(), rate, judge=judge)
        self.algorithm: TrainingAlgorithm = open_algorithm(spec, self.workload, BATCH, seed=seed)
        self._steps = self.algorithm.run(self.workload.batches(BATCH, seed=seed))
        self.accuracies: list[float] = []
        self.diverged = False
        self._mean = AveragedModel(self.algorithm.module) if judge else None

    def further(self, steps: int) -> None:
        """Train on to so many steps in all."""
        while not self.diverged and len(self.accuracies) * self.task.every < steps:
            for step in range(len(self.accuracies) * self.task.every, (len(self.accuracies) + 1) * self.task.every):
                if not math.isfinite(next(self._steps).loss):
                    self.diverged = True
                    break
                if self._mean is not None and step >= (1 - AVERAGED) * self.task.steps and step % AVERAGED_EVERY == 0:
                    self._mean.update_parameters(self.algorithm.module)
            self.accuracies.append(self.workload.evaluate(self.algorithm.module))

    @property
    def final(self) -> float:
        """Mean of the last evaluations; -1 for one that diverged."""
        return -1.0 if self.diverged else statistics.mean(self.accuracies[-LAST:])

    @property
    def averaged(self) -> float:
        """Accuracy of the mean weights; -1 where it diverged."""
        assert self._mean is not None
        return -1.0 if self.diverged else self.workload.evaluate(self._mean.module)

    def close(self) -> None:
        """Give back what it holds."""
        self._steps.close()  # type: ignore[attr-defined]


def picked_rate(task: Task, spec: str, data: Path | None) -> tuple[float, dict[str, float]]:
    """The learning rate by successive halving, and what each one had reached when it was left."""
    left = [Training(task, spec, data, rate, seed=0, judge=False) for rate in RATES]
    reached: dict[str, float] = {}
    for share, keep in ((1 / 8, 3), (1 / 4, 2), (1 / 2, 1)):
        for training in left:
            training.further(int(task.steps * share))
            reached[f"{training.rate:g}"] = round(training.final, 4)
        # Of two that are as good the lower rate: it is the safer one for longer.
        left.sort(key=lambda training: (-training.final, training.rate))
        for training in left[keep:]:
            training.close()
        left = left[:keep]
    left[0].close()
    return left[0].rate, reached


def measured(task: Task, name: str, spec: str, data: Path | None) -> dict[str, Any]:
    """Rate, accuracies of the seeds on the part to judge with, and seconds of a step."""
    torch.set_num_threads(1)
    begun = time.perf_counter()
    kept = _rate_path(task, ABLATIONS.get(name, name))
    if not kept.exists():
        rate, reached = picked_rate(task, spec, data)
        write_json(kept, {"learning_rate": rate, "chosen_from": reached})
    picked = json.loads(kept.read_text(encoding="utf-8"))
    rate = picked["learning_rate"]
    curves, step_s, averaged = [], [], []
    for seed in SEEDS:
        training = Training(task, spec, data, rate, seed=seed, judge=True)
        start = time.process_time()
        training.further(task.steps)
        step_s.append((time.process_time() - start) / task.steps)
        training.close()
        averaged.append(round(training.averaged, 4))
        curves.append([round(value, 4) for value in training.accuracies])
    finals = [statistics.mean(curve[-LAST:]) for curve in curves]
    print(
        f"{task.name}: {name}: {statistics.mean(finals):.3f} at {rate:g} ({time.perf_counter() - begun:.0f} s)",
        flush=True,
    )
    return {
        "algorithm": spec,
        "learning_rate": rate,
        "chosen_from": {} if name in ABLATIONS else picked["chosen_from"],
        "accuracy": round(statistics.mean(finals), 4),
        "accuracies": [round(value, 4) for value in finals],
        "averaged": averaged,
        "curves": curves,
        "step_ms": round(1000 * statistics.median(step_s), 3),
    }


def main(arguments: list[str]) -> None:
    """Measure what is missing, then write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks asyncfgd accuracy")
    parser.add_argument("--data", type=Path, help="a folder with tin100_32, cifar10_12k and tinyshakespeare")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    WORK.mkdir(parents=True, exist_ok=True)
    wanted = [(task, name) for task in tasks(given.data) for name in algorithms(task)]
    missing = [(task, name) for task, name in wanted if not _path(task, name).exists()]
    with ProcessPoolExecutor(given.processes) as pool:
        for done in [pool.submit(_keep, task.name, name, given.data) for task, name in missing]:
            done.result()
    results = {task.name: _results(task) for task in tasks(given.data)}
    write_json(RESULT, {"benchmark": "asyncfgd accuracy", "machine": machine(), "batch_size": BATCH, "tasks": results})


def _keep(task_name: str, name: str, data: Path | None) -> None:
    task = next(task for task in tasks(data) if task.name == task_name)
    write_json(_path(task, name), measured(task, name, algorithms(task)[name], data))


def _path(task: Task, name: str) -> Path:
    return WORK / f"{task.name}; {name}.json".replace(" ", "_").replace(",", "")


def _rate_path(task: Task, name: str) -> Path:
    path = _path(task, name)
    return path.with_name(f"{path.stem};_rate.json")


def _results(task: Task) -> dict[str, Any]:
    found = {name: json.loads(_path(task, name).read_text()) for name in algorithms(task)}
    target = SHARE_OF_BACKPROP * found["backprop"]["accuracy"]
    own = list(_targets(found))
    for result in found.values():
        result["samples_to_target"] = [_samples(task, curve, target) for curve in result["curves"]]
        result["samples_to_common_target"] = [_samples(task, curve, min(own)) for curve in result["curves"]]
    return {
        "steps": task.steps,
        "every": task.every,
        "modules": task.cut,
        "parameters": sum(p.numel() for p in task.model().parameters()),
        "target": round(target, 4),
        "common_target": round(min(own), 4),
        "algorithms": found,
    }


def _targets(found: dict[str, Any]) -> Iterator[float]:
    """What every algorithm that learns anything reaches in the end, less a little: a target that all can be compared
    at."""
    for result in found.values():
        yield 0.98 * result["accuracy"]


def _samples(task: Task, curve: list[float], target: float) -> int | None:
    """Samples until the metric is there; None where it never was."""
    at = next((place for place, value in enumerate(curve, start=1) if value >= target), None)
    return None if at is None else at * task.every * BATCH


def markdown(found: dict[str, Any]) -> str:
    """A table for each task."""
    lines = []
    for name, task in found["tasks"].items():
        lines += [
            f"**{name}**: {task['parameters']:,} parameters, {task['steps']:,} steps of {found['batch_size']} samples, "
            f"{task['modules']} module{'s' if task['modules'] > 1 else ''}; the targets are {task['target']:.3f} and "
            f"{task['common_target']:.3f}.",
            "",
            "| algorithm | learning rate | accuracy, mean of 3 seeds (each) | of the mean weights "
            "| samples to the first target | times backprop's | to the second | times backprop's | ms a step |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        backprop = task["algorithms"]["backprop"]
        for algorithm, one in task["algorithms"].items():
            each = ", ".join(f"{accuracy:.3f}" for accuracy in one["accuracies"])
            shown = [
                cell
                for which in ("samples_to_target", "samples_to_common_target")
                for cell in _needed(one[which], backprop[which])
            ]
            lines.append(
                f"| {algorithm} | {one['learning_rate']:g} | {one['accuracy']:.3f} ({each}) "
                f"| {statistics.mean(one['averaged']):.3f} | {' | '.join(shown)} | {one['step_ms']:.1f} |"
            )
        lines.append("")
    return "\n".join(lines)


def _needed(samples: list[int | None], backprops: list[int | None]) -> tuple[str, str]:
    reached = [count for count in samples if count is not None]
    if len(reached) < len(samples):
        return f"{len(reached)} of {len(samples)} seeds reach it", ""
    mean = statistics.mean(reached)
    own = [count for count in backprops if count is not None]
    return f"{mean:,.0f}", f"{mean / statistics.mean(own):.1f}" if len(own) == len(backprops) else ""
