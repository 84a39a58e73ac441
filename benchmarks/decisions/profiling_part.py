"""Probing alone, with exactly known samples to the target; and the whole job, which trains a proxy to estimate them.

Regret is against the fastest cell whose true power is under 0.98 of the cap, so it may be below 0, and against the
fastest one under the cap. A pick whose true power exceeds the cap is counted, and costs what follows: the guard lowers
the clock until power is under the cap.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.decisions.boards import Board, Cell, Rig
from benchmarks.decisions.estimators import SEEDS, Bank
from benchmarks.decisions.generators import board
from benchmarks.decisions.guided_way import Samples, guided_way, together
from benchmarks.decisions.scoring import regrets
from benchmarks.decisions.sweeps import Sweep, pairs, truth

BOARDS = 120
"""Boards of each kind."""

CAPS = (0.25, 0.9)
GUARD = 0.98
MARGIN = 0.01
"""Share of the cap that a probe may exceed it by without being counted among those surely above."""

KINDS = ("roofline", "table")

CASES = 10
"""Cases of the whole job for each pair of a proxy and a target."""

FIRST_BOARD = 5000
"""First seed of the whole job's boards, which differ from those of probing alone."""


def case(kind: str, seed: int) -> tuple[Board, float, dict[int, float]]:
    """A board, a cap that some cell stays under by 2 %, and samples that do not follow the formula exactly."""
    place, draw = board(kind, seed), random.Random(f"profiling {kind} {seed}")
    critical = min(8000.0, max(20.0, math.exp(math.log(200) + 1.3 * draw.gauss(0, 1))))
    samples = {size: (1 + size / critical) * math.exp(0.05 * draw.gauss(0, 1)) for size in place.batch_sizes}
    while True:
        cap_w = place.cap_w(draw.uniform(*CAPS))
        if place.fastest(GUARD * cap_w):
            return place, cap_w, samples


def cases() -> list[dict[str, Any]]:
    """One row per board and method."""
    rows = []
    for kind in KINDS:
        for seed in range(BOARDS):
            place, cap_w, samples = case(kind, seed)
            for name, strict in (("ours", False), ("ours, strict", True)):
                rig = Rig(place, cap_w, seed)
                pick = guided_way(rig, samples, strict=strict)
                rows.append({"way": name} | score(place, cap_w, samples, rig, pick))
    return rows


def device(number: int, draw: random.Random) -> tuple[Board, dict[int, float]]:
    """A random board and its seconds per sample at the fastest cells under a random cap, at least two of them."""
    place = board(KINDS[number % 2], FIRST_BOARD + number // 2)
    while True:
        cells = place.fastest(GUARD * place.cap_w(draw.uniform(*CAPS)))
        if len(cells) > 1:
            return place, {size: place.sample_s(cell) for size, cell in cells.items()}


def job_cases(sweeps: Sequence[Sweep]) -> list[dict[str, Any]]:
    """One row per pair of workloads, board and cap."""
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
            rig = Rig(place, cap_w, number)
            group = f"{target.key.family} {target.key.workload} {target.key.rate:g}"
            found = score(place, cap_w, true, rig, together(rig, Bank(runs)))
            rows.append(found | {"way": "ours", "group": group})
    return rows


def score(place: Board, cap_w: float, samples: Samples, rig: Rig, pick: Cell | None) -> dict[str, Any]:
    """Score a pick by the board's true figures."""
    best, at_cap = place.best(GUARD * cap_w, samples), place.best(cap_w, samples)
    assert best is not None
    assert at_cap is not None
    runnable = cell_under_cap(place, cap_w, pick)
    cost = math.inf if runnable is None else place.cost(runnable, samples)
    return {
        "board": place.name,
        "regret": cost / place.cost(best, samples) - 1,
        "regret_at_cap": cost / place.cost(at_cap, samples) - 1,
        "probes": rig.probes,
        "probing_s": rig.seconds,
        "surely_over": sum(share > MARGIN for share in rig.over),
        "overshoot": max(rig.over, default=0.0),
        "pick_over": pick is not None and float(place.power_w[place.place(pick)]) > cap_w,
    }


def cell_under_cap(place: Board, cap_w: float, cell: Cell | None) -> Cell | None:
    """The cell, or the next lower clock at which its true power is under the cap; None if there is none."""
    if cell is None:
        return None
    row, level = place.place(cell)
    while level > 0 and place.power_w[row, level] > cap_w:
        level -= 1
    return None if place.power_w[row, level] > cap_w else Cell(cell.batch_size, place.clocks_mhz[level])


def summary(rows: Sequence[dict[str, Any]], group: str = "board") -> dict[str, Any]:
    """Figures of every method; cases of one ``group`` are not independent."""
    return {
        name: of_way([row for row in rows if row["way"] == name], group)
        for name in dict.fromkeys(row["way"] for row in rows)
    }


def of_way(rows: Sequence[dict[str, Any]], group: str) -> dict[str, Any]:
    """Regrets, and counts of probes, of probes above the cap, and of picks above it."""
    some = [row for row in rows if math.isfinite(row["regret"])]
    groups = [row[group] for row in some]
    return {
        "all": regrets([row["regret"] for row in some], groups),
        "against the optimum at the cap": regrets([row["regret_at_cap"] for row in some], groups),
        "boards": len(rows),
        "no_pick": len(rows) - len(some),
        "probes_mean": round(float(np.mean([row["probes"] for row in rows])), 2),
        "probes_max": max(row["probes"] for row in rows),
        "probing_s": round(float(np.mean([row["probing_s"] for row in rows])), 1),
        "boards_with_probe_surely_over": round(float(np.mean([row["surely_over"] > 0 for row in rows])), 4),
        "worst_overshoot": round(max(row["overshoot"] for row in rows), 4),
        "picks_over": round(float(np.mean([row["pick_over"] for row in rows])), 4),
    }
