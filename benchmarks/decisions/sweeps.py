"""Recorded runs to the target: workloads, their runs by batch size, and estimates of their true samples."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

Runs = Mapping[int, Sequence["Run"]]
"""Batch size -> its runs, in the order in which a sweep would make them."""


TINY = 1e-300


class Run(NamedTuple):
    """Samples to the target, or until the run ended without reaching it, and its seed if known."""

    samples: float
    reached: bool
    seed: int | None = None


class Key(NamedTuple):
    """Properties that runs share if they are comparable."""

    family: str
    workload: str
    role: str
    rate: float
    quantile: float


@dataclass
class Sweep:
    """All runs of one key."""

    key: Key
    runs: dict[int, list[Run]] = field(default_factory=dict)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Batch sizes in ascending order."""
        return tuple(sorted(self.runs))

    def some(self, places: Sequence[int]) -> dict[int, list[Run]]:
        """The runs at these places of each batch size's list."""
        return {size: [runs[place] for place in places if place < len(runs)] for size, runs in self.runs.items()}


def read(path: Path) -> list[Sweep]:
    """The sweeps of a table of runs; an empty ``samples_to_target`` is a censored run."""
    sweeps: dict[Key, Sweep] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rate, quantile = float(row["learning_rate_at_32"]), float(row["target_quantile"])
            key = Key(row["family"], row["workload"], row["role"], rate, quantile)
            reached = row["samples_to_target"] != ""
            samples = float(row["samples_to_target"] if reached else row["samples_budget"])
            run = Run(samples, reached, int(row["seed"]))
            sweeps.setdefault(key, Sweep(key)).runs.setdefault(int(row["batch_size"]), []).append(run)
    return list(sweeps.values())


def pairs(sweeps: Sequence[Sweep]) -> Iterator[tuple[Sweep, Sweep]]:
    """Each target with the proxy of its family, learning rate and quantile."""
    proxies = {(s.key.family, s.key.rate, s.key.quantile): s for s in sweeps if s.key.role == "proxy"}
    for sweep in sweeps:
        if sweep.key.role == "target":
            yield proxies[sweep.key.family, sweep.key.rate, sweep.key.quantile], sweep


def truth(runs: Runs) -> dict[int, float]:
    """Batch size -> median samples to the target, the maximum-likelihood log-normal one with censored runs.

    The spread over seeds is common to all batch sizes. A batch size with mostly censored runs is unreliable, and its
    samples are infinite.
    """
    all_logs, spread = (
        {size: np.log([run.samples for run in own]) for size, own in runs.items() if own},
        _spread(runs),
    )
    is_in = {size: np.array([run.reached for run in own]) for size, own in runs.items() if own}
    left = [size for size in all_logs if is_in[size].mean() > 0.5]
    medians = {}
    for size in all_logs:
        if size not in left:
            medians[size] = math.inf
            continue
        logs, reached = all_logs[size], is_in[size]
        middles = np.linspace(logs[reached].mean() - 0.2 * spread, logs.max() + spread, 600)
        apart = (logs[None, :] - middles[:, None]) / spread
        tails = np.log(np.maximum(ndtr(-apart[:, ~reached]), TINY))
        likelihood = -0.5 * (apart[:, reached] ** 2).sum(axis=1)
        likelihood = likelihood + (tails.sum(axis=1) if (~reached).any() else 0.0)
        best = logs.mean() if reached.all() else middles[int(np.argmax(likelihood))]
        medians[size] = math.exp(float(best))
    return medians


def errors(runs: Runs) -> dict[int, float]:
    """Batch size -> standard error of the logarithm of its ``truth``; 0 if that is infinite."""
    spread, reached = _spread(runs), {size: sum(run.reached for run in own) for size, own in runs.items()}
    return {size: spread / math.sqrt(count) if 2 * count > len(runs[size]) else 0.0 for size, count in reached.items()}


def _spread(runs: Runs) -> float:
    """Pooled standard deviation of ln(samples) over the seeds of a batch size; at least 1 %."""
    squares, free = 0.0, 0
    for own in runs.values():
        logs = np.log([run.samples for run in own if run.reached])
        if 2 * len(logs) > len(own):
            squares, free = squares + float(((logs - logs.mean()) ** 2).sum()), free + len(logs) - 1
    return math.sqrt(max(squares / max(free, 1), 1e-4))
