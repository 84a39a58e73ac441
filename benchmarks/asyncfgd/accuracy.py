"""Accuracy and samples to target of each algorithm: learning rates chosen on one part of the data, judged on another.

Each algorithm gets the paper's grid of learning rates, widened by half decades, and successive halving: all rates for
an eighth of the steps, the best three to a quarter, the best two to the half. Source of the grid and the batch size:
Zhao et al., AsyncFGD, NeurIPS 2023, section 6.

The noise of an estimated gradient does not vanish at a constant rate. So beside the accuracy of the last weights, that
of the mean weights over the last quarter of the steps is given (Polyak and Juditsky 1992), for all algorithms.

Finished results are stored in the work folder: for each task and algorithm, one file for its rate and one for its runs.
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

from benchmarks.asyncfgd.exact_end import gain
from benchmarks.asyncfgd.tasks import BATCH, FINE_TUNING_SAMPLES, WORK, Task, tasks
from benchmarks.timing import RESULTS, machine
from wattune.algorithms import TrainingAlgorithm, open_algorithm
from wattune.files import write_json

RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
SEEDS = (0, 1, 2)
LAST = 3
"""Evaluations whose mean is the final accuracy: a single one is noisy, and the best one is biased."""

ABLATIONS = dict.fromkeys(("AsyncFGD, alpha 0.15 below the head", "AsyncFGD, alpha rising after 10 epochs"), "AsyncFGD")
"""Ablation -> algorithm whose learning rate it uses: its own cannot be chosen before the lower layers learn."""

AVERAGED, AVERAGED_EVERY = 0.25, 5
"""Share of the last steps whose weights are averaged, and every how many steps."""

SHARE_OF_BACKPROP = 0.95
"""Target of "samples to target", as a share of backprop's final accuracy."""

LAST_BLOCK = {"digits, perceptron": 2, "digits, convolutions": 3, "characters, transformer": 3}
"""Task -> trained layers of the last block and the head: the control of what the lower layers learn."""

LAST_LAYER_ALONE = "last layer by backprop, rest frozen"
LAST_BLOCK_ALONE = "last block and layer by backprop, rest frozen"

CONTROLS = {
    "forward gradient, activities": LAST_LAYER_ALONE,
    "AsyncFGD, activities": LAST_LAYER_ALONE,
}
"""Algorithm -> its control, which learns what has its exact gradient and nothing else."""

CONTROLS_OF_TASK = {("digits, convolutions", "AsyncFGD, activities"): LAST_BLOCK_ALONE}
"""Exceptions: the last module of this pipeline is a block and the head."""

RESULT = RESULTS / "asyncfgd_accuracy.json"


def algorithms(task: Task) -> dict[str, str]:
    """Name in the table -> spec, for this task. A pipeline of one module is the synchronous algorithm, and perturbed
    activities of a single layer are backpropagation."""
    specs = {"backprop": "backprop", "forward gradient": "forward-gradient"}
    if task.cut > 1:
        cut = f"async-fgd:modules={task.cut}"
        specs |= {
            "forward gradient, activities": "forward-gradient:perturb=activities",
            "AsyncFGD": cut,
            "AsyncFGD, activities": f"{cut},perturb=activities",
            LAST_LAYER_ALONE: "backprop:last=1",
        }
    if task.name in LAST_BLOCK:
        specs[LAST_BLOCK_ALONE] = f"backprop:last={LAST_BLOCK[task.name]}"
    if task.fine_tuning:
        specs["forward gradient, 8 directions"] = "forward-gradient:directions=8"
    if task.fine_tuning and task.cut > 1:
        constant, rising = ABLATIONS
        specs[constant] = f"async-fgd:modules={task.cut},alpha=0.15"
        specs[rising] = f"async-fgd:modules={task.cut},alpha=0.15,epoch_samples={FINE_TUNING_SAMPLES}"
    return specs


class ResumableRun:
    """A training run that can be continued, with the accuracies at each evaluation so far."""

    def __init__(self, task: Task, spec: str, data: Path | None, rate: float, *, seed: int, judge: bool):
        self.task, self.rate = task, rate
        self.workload = task.workload(data or Path(), rate, judge=judge)
        self.algorithm: TrainingAlgorithm = open_algorithm(spec, self.workload, BATCH, seed=seed)
        self._steps = self.algorithm.run(self.workload.batches(BATCH, seed=seed))
        self.accuracies: list[float] = []
        self.diverged = False
        self._mean = AveragedModel(self.algorithm.module) if judge else None

    def continue_to(self, steps: int) -> None:
        """Train until ``steps`` steps in total."""
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
        """Mean of the last evaluations; -1 if the run diverged."""
        return -1.0 if self.diverged else statistics.mean(self.accuracies[-LAST:])

    @property
    def averaged(self) -> float:
        """Accuracy of the mean weights; -1 if the run diverged."""
        assert self._mean is not None
        return -1.0 if self.diverged else self.workload.evaluate(self._mean.module)

    def close(self) -> None:
        """Release the run's resources."""
        self._steps.close()  # type: ignore[attr-defined]


def picked_rate(task: Task, spec: str, data: Path | None) -> tuple[float, dict[str, float]]:
    """The learning rate by successive halving, and the last accuracy of each candidate."""
    candidates = [ResumableRun(task, spec, data, rate, seed=0, judge=False) for rate in RATES]
    reached: dict[str, float] = {}
    for share, count in ((1 / 8, 3), (1 / 4, 2), (1 / 2, 1)):
        for training in candidates:
            training.continue_to(int(task.steps * share))
            reached[f"{training.rate:g}"] = round(training.final, 4)
        # The lower of two equally good rates is safer over more steps.
        candidates.sort(key=lambda training: (-training.final, training.rate))
        for training in candidates[count:]:
            training.close()
        candidates = candidates[:count]
    candidates[0].close()
    return candidates[0].rate, reached


def measured(task: Task, name: str, spec: str, data: Path | None) -> dict[str, Any]:
    """Learning rate, accuracy of each seed on the judging part, and seconds per step."""
    torch.set_num_threads(1)
    begun = time.perf_counter()
    path = _rate_path(task, ABLATIONS.get(name, name))
    if not path.exists():
        rate, reached = picked_rate(task, spec, data)
        write_json(path, {"learning_rate": rate, "chosen_from": reached})
    choice = json.loads(path.read_text(encoding="utf-8"))
    rate = choice["learning_rate"]
    curves, step_s, averaged = [], [], []
    for seed in SEEDS:
        training = ResumableRun(task, spec, data, rate, seed=seed, judge=True)
        start = time.process_time()
        training.continue_to(task.steps)
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
        "chosen_from": {} if name in ABLATIONS else choice["chosen_from"],
        "accuracy": round(statistics.mean(finals), 4),
        "accuracies": [round(value, 4) for value in finals],
        "averaged": averaged,
        "curves": curves,
        "step_ms": round(1000 * statistics.median(step_s), 3),
    }


def main(arguments: list[str]) -> None:
    """Measure missing results, then write the summary."""
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
    results = {name: json.loads(_path(task, name).read_text()) for name in algorithms(task)}
    target = SHARE_OF_BACKPROP * results["backprop"]["accuracy"]
    finals = list(_targets(results))
    for result in results.values():
        result["samples_to_target"] = [_samples(task, curve, target) for curve in result["curves"]]
        result["samples_to_common_target"] = [_samples(task, curve, min(finals)) for curve in result["curves"]]
    return {
        "steps": task.steps,
        "every": task.every,
        "modules": task.cut,
        "parameters": sum(p.numel() for p in task.model().parameters()),
        "target": round(target, 4),
        "common_target": round(min(finals), 4),
        "algorithms": results,
    }


def _targets(results: dict[str, Any]) -> Iterator[float]:
    """Final accuracies, less 2 %: the least of them is a target that every algorithm reaches."""
    for result in results.values():
        yield 0.98 * result["accuracy"]


def _samples(task: Task, curve: list[float], target: float) -> int | None:
    """Samples until the metric reaches the target; None if it never does."""
    at = next((place for place, value in enumerate(curve, start=1) if value >= target), None)
    return None if at is None else at * task.every * BATCH


def markdown(results: dict[str, Any]) -> str:
    """A table for each task."""
    lines = []
    for name, task in results["tasks"].items():
        lines += [
            f"**{name}**: {task['parameters']:,} parameters, {task['steps']:,} steps of {results['batch_size']} "
            f"samples, {task['modules']} module{'s' if task['modules'] > 1 else ''}; the targets are "
            f"{task['target']:.3f} and "
            f"{task['common_target']:.3f}.",
            "",
            "| algorithm | learning rate | accuracy, mean of 3 seeds (each) | gain over the control "
            "| with averaged weights "
            "| samples to first target | relative to backprop | to second target | relative to backprop "
            "| ms per step |",
            "|---|---|---|---|---|---|---|---|---|---|",
        ]
        backprop = task["algorithms"]["backprop"]
        for algorithm, one in task["algorithms"].items():
            each = ", ".join(f"{accuracy:.3f}" for accuracy in one["accuracies"])
            shown = [
                cell
                for which in ("samples_to_target", "samples_to_common_target")
                for cell in _needed(one[which], backprop[which])
            ]
            control = CONTROLS_OF_TASK.get((name, algorithm), CONTROLS.get(algorithm))
            gained = gain(one, task["algorithms"][control]) if control else ""
            lines.append(
                f"| {algorithm} | {one['learning_rate']:g} | {one['accuracy']:.3f} ({each}) | {gained} "
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
