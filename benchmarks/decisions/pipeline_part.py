"""The whole job: probe the board, train the proxy, choose; judged by the board's truth and the target's own runs.

One case is a pair of workloads, a board and a cap; every method gets the same rig and the same proxy runs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.decisions import profilers
from benchmarks.decisions.boards import Board, Rig
from benchmarks.decisions.estimators import SEEDS, Bank
from benchmarks.decisions.generators import board
from benchmarks.decisions.guided_way import together
from benchmarks.decisions.profilers import ProbeOutcome
from benchmarks.decisions.profiling_part import CAPS, GUARD, KINDS, score
from benchmarks.decisions.sweeps import Sweep, pairs, truth

CASES = 10
"""Cases for each pair of a proxy and a target."""

FIRST_BOARD = 5000
"""First seed of the boards, which differ from those of the profiling part."""

Samples = dict[int, float]


def device(number: int, draw: random.Random) -> tuple[Board, dict[int, float]]:
    """A random board and its seconds per sample at the fastest cells under a random cap, at least two of them."""
    place = board(KINDS[number % 2], FIRST_BOARD + number // 2)
    while True:
        cells = place.fastest(GUARD * place.cap_w(draw.uniform(*CAPS)))
        if len(cells) > 1:
            return place, {size: place.sample_s(cell) for size, cell in cells.items()}


def _ours(rig: Rig, bank: Bank) -> ProbeOutcome:
    return together(rig, bank)[0]


def _with_sweep(profile: Callable[[Rig, Samples], ProbeOutcome]) -> Callable[[Rig, Bank], ProbeOutcome]:
    """Combine a profiler with the means of the paper's sweep."""

    def way(rig: Rig, bank: Bank) -> ProbeOutcome:
        means = {}
        for size in bank.runs:
            sample = [bank.make(size) for _ in range(SEEDS)]
            reached = any(run.reached for run in sample)
            means[size] = float(np.mean([run.samples for run in sample])) if reached else math.inf
        return profile(rig, means)

    return way


WAYS: dict[str, Callable[[Rig, Bank], ProbeOutcome]] = {
    "ours": _ours,
    "full grid + 6 x 5": _with_sweep(profilers.full_grid),
    "paper: staircase + 6 x 5": _with_sweep(profilers.staircase),
}


def cases(sweeps: Sequence[Sweep]) -> list[dict[str, Any]]:
    """One row per case and method."""
    rows = []
    for proxy, target in pairs(sweeps):
        true = truth(target.runs)
        for number in range(CASES):
            draw = random.Random(f"pipeline {proxy.key} {target.key.workload} {number}")
            place = board(KINDS[number % 2], FIRST_BOARD + number // 2)
            cap_w = place.cap_w(draw.uniform(*CAPS))
            while place.best(GUARD * cap_w, true) is None:
                cap_w = place.cap_w(draw.uniform(*CAPS))
            runs = proxy.some(draw.sample(range(len(next(iter(proxy.runs.values())))), SEEDS))
            for name, way in WAYS.items():
                rig, bank = Rig(place, cap_w, number), Bank(runs)
                outcome = way(rig, bank)
                group = f"{target.key.family} {target.key.workload} {target.key.rate:g}"
                rows.append(score(place, cap_w, true, rig, outcome) | {"way": name, "group": group})
    return rows
