"""Methods that choose the batch size, from runs on the proxy and the device's least seconds per sample.

Each gets the runs that it may make (`Bank`) and returns a batch size; the runs that it makes are counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from benchmarks.decisions.sweeps import Run, Runs
from wattune.records.efficiency import BAND_SD
from wattune.sample_efficiency.choice import choose
from wattune.sample_efficiency.posterior import CurvePosterior, Observation
from wattune.sample_efficiency.scheduler import RunScheduler

SampleTimes = Mapping[int, float]
"""Batch size -> seconds per sample at the device's fastest cell under the cap; batch sizes without one are absent."""

SEEDS = 5
"""Seeds of the paper's sweep."""

MOST = 12
TIME_SD = 0.005
"""Standard deviation of ln(seconds per sample) after a profile's probes."""


@dataclass
class Bank:
    """Recorded runs, made one after another at each batch size."""

    runs: Runs
    made: list[tuple[int, Run]] = field(default_factory=list)

    def has(self, size: int) -> bool:
        """Check if another run can be made at this batch size."""
        return len(self.runs[size]) > sum(at == size for at, _ in self.made)

    def make(self, size: int, most: float | None = None) -> Run:
        """Make the next run at this batch size, censored after ``most`` samples."""
        run = self.runs[size][sum(at == size for at, _ in self.made)]
        if most is not None and run.samples > most:
            run = Run(most, False, run.seed)
        self.made.append((size, run))
        return run


class Decision(NamedTuple):
    """The batch size (None if there is no choice), and the basis of the decision for ours."""

    batch_size: int | None
    expected_regret: float | None = None
    curve: CurvePosterior | None = None


def ours(
    bank: Bank,
    times: SampleTimes,
    *,
    spacing: float = 0.0,
    own: int | None = None,
    whole: bool = False,
    most: int = MOST,
) -> Decision:
    """Choose by sequential runs and the pooled curve.

    ``own``: the user's own batch size, which is kept unless another one is surely faster. ``whole``: the runs are whole
    training runs. ``most``: maximum number of runs.
    """
    sizes = sorted(bank.runs)
    logs = {size: (math.log(one), TIME_SD) for size, one in times.items()}
    if len(logs) == 1:
        return Decision(next(iter(logs)), 0.0)
    design = RunScheduler(sizes, log_step_times=logs, own=own, whole=whole, most=most)
    seen: list[Observation] = []
    while True:
        size = design.next(seen, without=[one for one in sizes if not bank.has(one)])
        if size is None:
            break
        run = bank.make(size, design.budget(size))
        seen.append(Observation(size, run.samples, run.reached, run.seed, _spacing(run, spacing)))
    if not any(run.reached for run in seen):
        # Only one batch size can be best, so nothing was trained; or no run reached the target.
        best = min(logs, key=lambda one: logs[one][0] + float(design.posterior.mean[sizes.index(one)]))
        return Decision(best, None, design.posterior)
    choice = choose(design.posterior, logs, own=own)
    return Decision(choice.best, choice.expected_regret, design.posterior)


def _spacing(run: Run, spacing: float) -> float:
    """Standard deviation of ln(samples) if the metric is evaluated every ``spacing`` samples only."""
    return spacing / run.samples / math.sqrt(12)


def raw_means(bank: Bank, times: SampleTimes, seeds: int = SEEDS) -> Decision:
    """Choose as in the paper, by the means of ``seeds`` runs per batch size; a censored run counts as its budget."""
    means: dict[int, float] = {}
    for size in bank.runs:
        runs = [bank.make(size) for _ in range(seeds) if bank.has(size)]
        if any(run.reached for run in runs):
            means[size] = float(np.mean([run.samples for run in runs]))
    return Decision(_fastest(times, means))


def largest(times: SampleTimes) -> Decision:
    """Choose the largest batch size with a cell under the cap."""
    return Decision(max(times))


def _fastest(times: SampleTimes, samples: Mapping[int, float]) -> int | None:
    left: Sequence[int] = [size for size in times if size in samples]
    return min(left, key=lambda size: times[size] * samples[size], default=None)


def regret(decision: Decision, times: dict[int, float], true: dict[int, float]) -> float:
    """Regret relative to the best batch size; a batch size that misses the target has a regret of 100 %."""
    best = _fastest(times, {size: one for size, one in true.items() if math.isfinite(one)})
    if best is None:
        return 0.0
    chosen = decision.batch_size
    if chosen is None or not math.isfinite(true[chosen]):
        return 1.0
    return times[chosen] * true[chosen] / (times[best] * true[best]) - 1


def covered(decision: Decision, true: dict[int, float], error: dict[int, float] | None = None) -> list[bool]:
    """One flag per batch size but the reference: True if the target's ln r is in the stated 90 % band.

    ``error``: standard errors of ln(truth), by which the band is widened.
    """
    curve = decision.curve
    if curve is None or not any(curve.runs.values()) or not math.isfinite(true[curve.reference]):
        return []
    inside = []
    for size in curve.batch_sizes:
        if size != curve.reference and math.isfinite(true[size]):
            place = curve.batch_sizes.index(size)
            own = 0.0 if error is None else math.hypot(error[size], error[curve.reference])
            apart = math.log(true[size] / true[curve.reference]) - float(curve.mean[place])
            inside.append(bool(abs(apart) <= BAND_SD * math.hypot(math.sqrt(curve.covariance[place, place]), own)))
    return inside
