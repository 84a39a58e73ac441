"""Zeus' batch-size policy: pruning, then Thompson sampling with Gaussian beliefs; every job is a whole training.

Written anew from You, Chung, Chowdhury (NSDI 2023, arXiv 2208.06102), section 4. A job costs its time to the target
here (the energy's share in their cost is set to nothing, since time is what is compared). Pruning walks down from the
default batch size to the smallest and up to the largest, turns where a job fails, and does so twice; a job fails when
it misses the target or costs more than twice the least so far, where it is stopped. What came through is an arm. Each
arm's cost is Gaussian with a flat prior, and the variance of its own costs; the arm with the least draw is next.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from statistics import fmean, variance

from benchmarks.decisions.estimators import Bank, Decision, SampleTimes

BETA = 2.0
ROUNDS = 2
FEWEST = 2
"""Costs of an arm before its variance is known: such arms are played first."""


def zeus(bank: Bank, times: SampleTimes, jobs: int, seed: int, *, default: int | None = None) -> Decision:
    """The arm with the least mean cost after so many jobs, or as many as were recorded."""
    draw = random.Random(f"zeus {seed}")
    costs: dict[int, list[float]] = {size: [] for size in sorted(times)}
    least = math.inf
    arms = list(costs)

    def play(size: int) -> bool | None:
        """Whether the job came to the target in time; None where no job is left to be played."""
        nonlocal least
        if len(bank.made) >= jobs or not bank.has(size):
            return None
        most = BETA * least / times[size] if math.isfinite(least) else None
        run = bank.make(size, most)
        if run.reached:
            costs[size].append(times[size] * run.samples)
            least = min(least, costs[size][-1])
        return run.reached

    middle = default if default in costs else arms[-1]
    for _ in range(ROUNDS):
        kept = []
        down = [size for size in reversed(arms) if size <= middle]
        up = [size for size in arms if size > middle]
        for side in (down, up):
            for size in side:
                found = play(size)
                if found is False:
                    break
                kept.append(size)
        arms = sorted(set(kept)) or arms
        known = {size: min(costs[size]) for size in arms if costs[size]}
        middle = min(known, key=known.__getitem__, default=middle)
    while len(bank.made) < jobs:
        open_arms = [size for size in arms if bank.has(size)]
        if not open_arms or play(_next(open_arms, costs, draw)) is None:
            break
    means = {size: fmean(costs[size]) for size in arms if costs[size]}
    return Decision(min(means, key=means.__getitem__, default=None))


def _next(arms: list[int], costs: Mapping[int, list[float]], draw: random.Random) -> int:
    fresh = [size for size in arms if len(costs[size]) < FEWEST]
    if fresh:
        return min(fresh, key=lambda size: len(costs[size]))
    believed = {s: draw.gauss(fmean(costs[s]), math.sqrt(variance(costs[s]) / len(costs[s]))) for s in arms}
    return min(believed, key=believed.__getitem__)
