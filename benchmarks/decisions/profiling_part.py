"""Probing alone: every method on the same boards and caps, with exactly known samples to the target.

Regret is against the fastest cell whose true power is under 0.98 of the cap, so it may be below 0. A pick whose true
power exceeds the cap is counted, and costs what follows: the guard lowers the clock until power is under the cap.

The regret against the fastest cell whose largest reading is expected to stay under the cap is given as well: a cell is
never picked after a reading above the cap, so the difference is due to that rule and no search could avoid it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.decisions import optuna_way, profilers
from benchmarks.decisions.boards import Array, Board, Cell, Rig, probe_length
from benchmarks.decisions.generators import board
from benchmarks.decisions.guided_way import guided_way
from benchmarks.decisions.profilers import ProbeOutcome, Samples
from benchmarks.decisions.scoring import grouped, paired, regrets, rounded
from wattune.profiling.guided import WINDOWS

BOARDS = 120
"""Boards of each kind."""

GP_BOARDS = 50
"""Boards of each kind for the slowest method."""

CAPS = (0.25, 0.9)
GUARD = 0.98
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
    "Optuna TPE, 16": optuna_way.tpe,
    "Optuna GP, 16": optuna_way.gp,
}


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
            for name, way in WAYS.items():
                if name.startswith("Optuna GP") and seed >= gp_boards:
                    continue
                rig = Rig(place, cap_w, seed)
                begun_s = time.perf_counter()
                outcome = way(rig, samples)
                seconds = time.perf_counter() - begun_s
                own = {"way": name, "seconds": seconds, "step_s": tuple(outcome.step_s)}
                rows.append(own | score(place, cap_w, samples, rig, outcome))
    return rows


def score(place: Board, cap_w: float, samples: Samples, rig: Rig, outcome: ProbeOutcome) -> dict[str, Any]:
    """Score an outcome by the board's true figures."""
    best, at_cap = place.best(GUARD * cap_w, samples), place.best(cap_w, samples)
    assert best is not None
    assert at_cap is not None
    runnable = cell_under_cap(place, cap_w, outcome.pick)
    readable = place.best(cap_w, samples, power_w=largest_readings(place))
    cost = math.inf if runnable is None else place.cost(runnable, samples)
    return {
        "board": place.name,
        "family": place.family,
        "noise": "over 1.5 %" if place.noise_w > NOISY * float(np.median(place.power_w)) else "to 1.5 %",
        "volts": "V(f) known" if place.volts else "V(f) unknown",
        "regret": cost / place.cost(best, samples) - 1,
        "regret_at_cap": cost / place.cost(at_cap, samples) - 1,
        "regret_by_readings": math.nan if readable is None else cost / place.cost(readable, samples) - 1,
        "probes": rig.probes,
        "probing_s": rig.seconds,
        "over": len(rig.over),
        "overshoot": max(rig.over, default=0.0),
        "pick_over": outcome.pick is not None and float(place.power_w[place.place(outcome.pick)]) > cap_w,
        "pick_overshoot": 0.0 if outcome.pick is None else float(place.power_w[place.place(outcome.pick)]) / cap_w - 1,
        "stated_over": outcome.stated,
        "reason": "" if "may save" in outcome.reason else outcome.reason,
    }


def largest_readings(place: Board) -> Array:
    """The largest reading that a probe of a cell on the warm board has on average (batch sizes, clocks), in watts."""
    counts = np.vectorize(lambda true_s: probe_length(place, float(true_s), WINDOWS)[1])(place.step_s)
    return np.asarray(place.power_w + place.noise_w * np.vectorize(expected_largest)(counts))


@cache
def expected_largest(count: int) -> float:
    """Mean of the largest of ``count`` draws from the standard normal distribution.

    It is the integral of x over the density of the largest, count * pdf(x) * cdf(x)^(count - 1).
    """
    x = np.linspace(-9.0, 9.0, 3601)
    return float((x * count * stats.norm.pdf(x) * stats.norm.cdf(x) ** (count - 1)).sum() * (x[1] - x[0]))


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
            "against the best by readings": by_readings(some),
            "against full grid": paired([row["regret"] for row in some], beside, boards),
        }
        summaries[name] = figures | counted(every)
        steps = [one for row in every for one in row["step_s"]]
        if steps:
            summaries[name]["step_ms"] = {
                "mean": round(1e3 * float(np.mean(steps)), 2),
                "p95": round(1e3 * float(np.quantile(steps, 0.95)), 2),
            }
    return summaries


def by_readings(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Regret against the best cell whose largest reading is expected to stay under the cap.

    ``none``: boards without such a cell; ``plain``: regret against the optimum at 0.98 of the cap on the other boards.
    """
    some = [row for row in rows if math.isfinite(row["regret_by_readings"])]
    boards = [row["board"] for row in some]
    return regrets([row["regret_by_readings"] for row in some], boards) | {
        "none": len(rows) - len(some),
        "plain": rounded(float(np.mean([row["regret"] for row in some]))) if some else None,
        "by": grouped(some, "regret_by_readings", "board", "family"),
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
        "boards_with_probe_over_by_family": by_family,
        "worst_overshoot": round(max(row["overshoot"] for row in rows), 4),
        "picks_over": round(float(np.mean([row["pick_over"] for row in rows])), 4),
        "worst_pick_over": round(max(row["pick_overshoot"] for row in rows), 4),
        "stated_pick_over": round(float(np.mean(stated)), 4) if stated else None,
        "reasons": {
            one: sum(row["reason"] == one for row in rows) for one in sorted({row["reason"] for row in rows}) if one
        },
    }
