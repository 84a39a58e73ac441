"""Zeus' batch-size policy: pruning, then Thompson sampling with Gaussian beliefs; every job is a whole training run.

Reimplemented from You, Chung, Chowdhury (NSDI 2023, arXiv 2208.06102), section 4. The cost of a job is its time to the
target (the share of energy in their cost is set to 0, since times are compared). Pruning walks down from the default
batch size to the smallest and up to the largest, turns back at a failed job, and does so twice. A job fails if it
misses the target or costs more than twice the least so far, at which point it is stopped. Surviving batch sizes are the
arms. Each arm's cost is Gaussian with a flat prior and the variance of its own costs; the arm with the least draw is
next.
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
"""Costs needed to estimate an arm's variance: arms with fewer are played first."""


def zeus(bank: Bank, times: SampleTimes, jobs: int, seed: int, *, default: int | None = None) -> Decision:
    """Choose the arm with the least mean cost after ``jobs`` jobs, or after all recorded ones."""
    draw = random.Random(f"zeus {seed}")
    costs: dict[int, list[float]] = {size: [] for size in sorted(times)}
    least = math.inf
    arms = list(costs)

    def play(size: int) -> bool | None:
        """Run a job; return True if it reached the target in time, None if no job is left."""
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
        survivors = []
        down = [size for size in reversed(arms) if size <= middle]
        up = [size for size in arms if size > middle]
        for side in (down, up):
            for size in side:
                outcome = play(size)
                if outcome is False:
                    break
                survivors.append(size)
        arms = sorted(set(survivors)) or arms
        least_costs = {size: min(costs[size]) for size in arms if costs[size]}
        middle = min(least_costs, key=least_costs.__getitem__, default=middle)
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
