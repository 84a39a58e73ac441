"""Ways to choose the batch size: from runs on the proxy and the seconds per sample that the device takes at best.

Each is given the runs that it may make (`Bank`) and says which batch size it takes; what it made is counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from benchmarks.decisions.sweeps import Run, Runs
from wattune.decisions.allocation import Allocation, server_seconds
from wattune.decisions.choice import choose
from wattune.decisions.curve import CurvePosterior, Observation

SampleTimes = Mapping[int, float]
"""Batch size -> seconds per sample on the device at the fastest cell that keeps the cap; those that can, alone."""

SEEDS = 5
"""Of the paper's sweep."""

MOST = 12
TIME_SD = 0.005
"""Standard deviation of ln(seconds per sample), as a profile's probes leave it."""


@dataclass
class Bank:
    """Runs to be made one after another at each batch size; counts samples and the server's time."""

    runs: Runs
    made: list[tuple[int, Run]] = field(default_factory=list)
    samples: float = 0.0
    server: float = 0.0

    def has(self, size: int) -> bool:
        """Whether another run can be made there."""
        return len(self.runs[size]) > sum(at == size for at, _ in self.made)

    def make(self, size: int, most: float | None = None) -> Run:
        """The next run at this batch size, ended after ``most`` samples where it takes longer."""
        run = self.runs[size][sum(at == size for at, _ in self.made)]
        if most is not None and run.samples > most:
            run = Run(most, False, run.seed)
        self.made.append((size, run))
        self.samples += run.samples
        self.server += run.samples * server_seconds(size)
        return run


class Decision(NamedTuple):
    """The batch size (None: none can be chosen), and of ours what it was decided from."""

    batch_size: int | None
    expected_regret: float | None = None
    curve: CurvePosterior | None = None
    reason: str = ""
    step_s: tuple[float, ...] = ()


def ours(bank: Bank, times: SampleTimes, *, noise: tuple[float, float] | None = None, spacing: float = 0.0) -> Decision:
    """The sequential design and the pooled curve; ``noise``: a noise scale and the sd of its logarithm."""
    sizes = sorted(bank.runs)
    logs = {size: (math.log(one), TIME_SD) for size, one in times.items()}
    if len(logs) == 1:
        return Decision(next(iter(logs)), 0.0, reason="only one batch size keeps the cap")
    scale, sd = noise or (None, 0.0)
    design = Allocation(sizes, log_step_times=logs, noise_scale=scale, noise_sd=sd)
    seen: list[Observation] = []
    steps: list[float] = []
    while True:
        begun_s = time.perf_counter()
        size = design.next(seen, without=[one for one in sizes if not bank.has(one)])
        steps.append(time.perf_counter() - begun_s)
        if size is None:
            break
        run = bank.make(size, design.budget(size))
        seen.append(Observation(size, run.samples, run.reached, run.seed, _spacing(run, spacing)))
    if not any(run.reached for run in seen):
        # Nothing was trained since only one batch size can be best, or nothing came to the target.
        best = min(logs, key=lambda one: logs[one][0] + float(design.posterior.mean[sizes.index(one)]))
        return Decision(best, None, design.posterior, design.reason, tuple(steps))
    choice = choose(design.posterior, logs)
    return Decision(choice.best, choice.expected_regret, design.posterior, design.reason, tuple(steps))


def _spacing(run: Run, spacing: float) -> float:
    """Of ln(samples), where the target was looked for every ``spacing`` samples only."""
    return spacing / run.samples / math.sqrt(12)


def raw_means(bank: Bank, times: SampleTimes, seeds: int = SEEDS) -> Decision:
    """The paper's: so many runs of every batch size, their means; a censored run counts as its budget."""
    means: dict[int, float] = {}
    for size in bank.runs:
        found = [bank.make(size) for _ in range(seeds) if bank.has(size)]
        if any(run.reached for run in found):
            means[size] = float(np.mean([run.samples for run in found]))
    return Decision(_fastest(times, means))


def raw_at_cost(bank: Bank, times: SampleTimes, server: float) -> Decision:
    """Means again, of as many runs as ``server`` time pays for: one of each batch size from the largest, then more."""
    found: dict[int, list[Run]] = {size: [] for size in bank.runs}
    order = sorted(bank.runs, reverse=True) * SEEDS
    for size in order:
        if bank.has(size):
            found[size].append(bank.make(size))
        if bank.server >= server:
            break
    means = {
        size: float(np.mean([run.samples for run in some]))
        for size, some in found.items()
        if any(run.reached for run in some)
    }
    return Decision(_fastest(times, means) if set(means) & set(times) else min(times, key=times.__getitem__))


def fewest_samples(bank: Bank, times: SampleTimes) -> Decision:
    """Batch first: the one that needs the fewest samples by the paper's sweep, of those that can keep the cap."""
    means = {}
    for size in bank.runs:
        found = [bank.make(size) for _ in range(SEEDS) if bank.has(size)]
        if any(run.reached for run in found) and size in times:
            means[size] = float(np.mean([run.samples for run in found]))
    return Decision(min(means, key=means.__getitem__, default=None))


def largest(times: SampleTimes) -> Decision:
    """The largest that can keep the cap."""
    return Decision(max(times))


def constant(times: SampleTimes) -> Decision:
    """As if every batch size needed the same number of samples."""
    return Decision(min(times, key=times.__getitem__))


def noise_scale_alone(times: SampleTimes, scale: float) -> Decision:
    """Samples grow as 1 + b / noise scale (McCandlish et al. 2018, arXiv 1812.06162, section 2)."""
    return Decision(_fastest(times, {size: 1 + size / scale for size in times}))


def cheapest(times: SampleTimes, samples: Mapping[int, float]) -> int | None:
    """The batch size with the least time to the target, of those that keep the cap and reach it."""
    return _fastest(times, {size: one for size, one in samples.items() if math.isfinite(one)})


def _fastest(times: SampleTimes, samples: Mapping[int, float]) -> int | None:
    left: Sequence[int] = [size for size in times if size in samples]
    return min(left, key=lambda size: times[size] * samples[size], default=None)
