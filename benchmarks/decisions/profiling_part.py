"""Probing alone: every method on the same boards and caps, with exactly known samples to the target.

Regret is against the fastest cell whose true power is under 0.98 of the cap, so it may be below 0, and against the
fastest one under the cap. A pick whose true power exceeds the cap is counted, and costs what follows: the guard lowers
the clock until power is under the cap.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.decisions import optuna_way, profilers
from benchmarks.decisions.boards import Board, Cell, Rig
from benchmarks.decisions.generators import board
from benchmarks.decisions.guided_way import guided_way
from benchmarks.decisions.profilers import ProbeOutcome, Samples
from benchmarks.decisions.scoring import grouped, paired, regrets, rounded

BOARDS = 120
"""Boards of each kind."""

GP_BOARDS = 50
"""Boards of each kind for the slowest method."""

CAPS = (0.25, 0.9)
GUARD = 0.98
MARGIN = 0.01
"""Share of the cap that a probe may exceed it by without being counted among those surely above."""

KINDS = ("roofline", "table")
NOISY = 0.015

Way = Callable[[Rig, Samples], ProbeOutcome]

WAYS: dict[str, Way] = {
    "ours": guided_way,
    "ours, strict": partial(guided_way, strict=True),
    "full grid": profilers.full_grid,
    "staircase": profilers.staircase,
    "batch first, then clock": profilers.batch_first,
    "largest batch": profilers.largest_batch,
    "fastest sample, full grid": profilers.fastest_sample,
    "Optuna TPE, same time": optuna_way.tpe,
    "Optuna GP, same time": optuna_way.gp,
}
"""Ours first: it sets the probing time of Optuna's searches."""


def case(kind: str, seed: int) -> tuple[Board, float, dict[int, float]]:
    """A board, a cap that some cell stays under by 2 %, and samples that do not follow the formula exactly."""
    place, draw = board(kind, seed), random.Random(f"profiling {kind} {seed}")
    critical = min(8000.0, max(20.0, math.exp(math.log(200) + 1.3 * draw.gauss(0, 1))))
    samples = {size: (1 + size / critical) * math.exp(0.05 * draw.gauss(0, 1)) for size in place.batch_sizes}
    while True:
        cap_w = place.cap_w(draw.uniform(*CAPS))
        if place.fastest(GUARD * cap_w):
            return place, cap_w, samples


def cases(boards: int = BOARDS, gp_boards: int = GP_BOARDS) -> list[dict[str, Any]]:
    """One row per board and method."""
    rows = []
    for kind in KINDS:
        for seed in range(boards):
            place, cap_w, samples = case(kind, seed)
            budget_s = math.inf
            for name, way in WAYS.items():
                if name.startswith("Optuna GP") and seed >= gp_boards:
                    continue
                rig = Rig(place, cap_w, seed, budget_s)
                begun_s = time.perf_counter()
                outcome = way(rig, samples)
                seconds = time.perf_counter() - begun_s
                budget_s = rig.seconds if way is guided_way else budget_s
                own = {"way": name, "seconds": seconds, "step_s": tuple(outcome.step_s)}
                rows.append(own | score(place, cap_w, samples, rig, outcome))
    return rows


def score(place: Board, cap_w: float, samples: Samples, rig: Rig, outcome: ProbeOutcome) -> dict[str, Any]:
    """Score an outcome by the board's true figures."""
    best, at_cap = place.best(GUARD * cap_w, samples), place.best(cap_w, samples)
    assert best is not None
    assert at_cap is not None
    runnable = cell_under_cap(place, cap_w, outcome.pick)
    cost = math.inf if runnable is None else place.cost(runnable, samples)
    return {
        "board": place.name,
        "family": place.family,
        "noise": "over 1.5 %" if place.noise_w > NOISY * float(np.median(place.power_w)) else "to 1.5 %",
        "volts": "V(f) known" if place.volts else "V(f) unknown",
        "regret": cost / place.cost(best, samples) - 1,
        "regret_at_cap": cost / place.cost(at_cap, samples) - 1,
        "probes": rig.probes,
        "probing_s": rig.seconds,
        "over": len(rig.over),
        "surely_over": sum(share > MARGIN for share in rig.over),
        "overshoot": max(rig.over, default=0.0),
        "pick_over": outcome.pick is not None and float(place.power_w[place.place(outcome.pick)]) > cap_w,
        "pick_overshoot": 0.0 if outcome.pick is None else float(place.power_w[place.place(outcome.pick)]) / cap_w - 1,
        "stated_over": outcome.stated,
        "reason": "" if "may save" in outcome.reason else outcome.reason,
    }


def cell_under_cap(place: Board, cap_w: float, cell: Cell | None) -> Cell | None:
    """The cell, or the next lower clock at which its true power is under the cap; None if there is none."""
    if cell is None:
        return None
    row, level = place.place(cell)
    while level > 0 and place.power_w[row, level] > cap_w:
        level -= 1
    return None if place.power_w[row, level] > cap_w else Cell(cell.batch_size, place.clocks_mhz[level])


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of every method, for all boards and by family and noise, and paired against the full grid."""
    ways: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        ways.setdefault(row["way"], []).append(row)
    grid = {row["board"]: row for row in ways["full grid"]}
    gaussian = {row["board"]: row for row in ways["Optuna GP, same time"]}
    summaries: dict[str, Any] = {}
    for name, every in ways.items():
        some = [row for row in every if math.isfinite(row["regret"])]
        boards = [row["board"] for row in some]
        beside = [grid[board]["regret"] for board in boards]
        figures: dict[str, Any] = {
            "all": regrets([row["regret"] for row in some], boards),
            "by": {
                kind: one
                for by in ("family", "noise", "volts")
                for kind, one in grouped(some, "regret", "board", by).items()
            },
            "against the optimum at the cap": regrets([row["regret_at_cap"] for row in some], boards),
            "against full grid": paired([row["regret"] for row in some], beside, boards),
        }
        summaries[name] = figures | counted(every)
        if name == "ours":
            summaries[name]["against Optuna GP"] = beside_gaussian(some, gaussian)
        steps = [one for row in every for one in row["step_s"]]
        if steps:
            summaries[name]["step_ms"] = {
                "mean": round(1e3 * float(np.mean(steps)), 2),
                "p95": round(1e3 * float(np.quantile(steps, 0.95)), 2),
            }
    return summaries


def beside_gaussian(rows: Sequence[dict[str, Any]], gaussian: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Ours and the Gaussian process on the boards where it found a pick: the regrets' difference and boards over."""
    both = [(row, gaussian[row["board"]]) for row in rows if row["board"] in gaussian]
    both = [(own, other) for own, other in both if math.isfinite(other["regret"])]
    boards = [own["board"] for own, _ in both]
    over, other_over = (sum(pair[place]["surely_over"] > 0 for pair in both) for place in (0, 1))
    return paired([own["regret"] for own, _ in both], [other["regret"] for _, other in both], boards) | {
        "boards_over": over,
        "boards_over_of_gp": other_over,
        "boards_over_share": rounded(over / max(1, other_over)),
    }


def counted(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts of probes, of probes above the cap, and of picks above it."""
    stated = [row["stated_over"] for row in rows if row["stated_over"] is not None]
    by_family = {
        family: rounded(float(np.mean([row["over"] > 0 for row in rows if row["family"] == family])), 4)
        for family in sorted({row["family"] for row in rows})
    }
    return {
        "boards": len(rows),
        "no_pick": sum(not math.isfinite(row["regret"]) for row in rows),
        "probes_mean": round(float(np.mean([row["probes"] for row in rows])), 2),
        "probes_max": max(row["probes"] for row in rows),
        "probing_s": round(float(np.mean([row["probing_s"] for row in rows])), 1),
        "boards_with_probe_over": round(float(np.mean([row["over"] > 0 for row in rows])), 4),
        "boards_with_probe_surely_over": round(float(np.mean([row["surely_over"] > 0 for row in rows])), 4),
        "boards_with_probe_over_by_family": by_family,
        "worst_overshoot": round(max(row["overshoot"] for row in rows), 4),
        "picks_over": round(float(np.mean([row["pick_over"] for row in rows])), 4),
        "worst_pick_over": round(max(row["pick_overshoot"] for row in rows), 4),
        "stated_pick_over": round(float(np.mean(stated)), 4) if stated else None,
        "reasons": {
            one: sum(row["reason"] == one for row in rows) for one in sorted({row["reason"] for row in rows}) if one
        },
    }
