"""The choice of the batch size alone: every method on the same runs and devices, judged on the target's own runs.

The device is known exactly here: the fastest cell of each batch size under 0.98 of a random cap on a random board. Five
of the proxy's ten seeds, drawn for each case, may be used.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.decisions import estimators
from benchmarks.decisions.boards import Board
from benchmarks.decisions.estimators import SEEDS, Bank, Decision
from benchmarks.decisions.generators import board
from benchmarks.decisions.scoring import grouped, regrets
from benchmarks.decisions.sweeps import Sweep, errors, pairs, truth
from wattune.records.efficiency import BAND_SD

DEVICES = 40
"""Devices for each pair of a proxy and a target."""

CAPS = (0.25, 0.9)
GUARD = 0.98
FLOOR = "floor"
"""Exact knowledge, judged by a truth with the error of the target's few seeds: the lowest regret to expect."""

FIRST_BOARD = 5000
"""First seed of this part's boards, which differ from those of the profiling part."""


def device(number: int, draw: random.Random) -> tuple[Board, dict[int, float]]:
    """A random board and its seconds per sample at the fastest cells under a random cap, at least two of them."""
    place = board(("roofline", "table")[number % 2], FIRST_BOARD + number // 2)
    while True:
        cells = place.fastest(GUARD * place.cap_w(draw.uniform(*CAPS)))
        if len(cells) > 1:
            return place, {size: place.sample_s(cell) for size, cell in cells.items()}


def cases(sweeps: Sequence[Sweep]) -> list[dict[str, Any]]:
    """All methods on all devices and pairs, one row each."""
    rows: list[dict[str, Any]] = []
    for proxy, target in pairs(sweeps):
        true, error = truth(target.runs), errors(target.runs)
        for number in range(DEVICES):
            draw = random.Random(f"{proxy.key} {target.key.workload} {number}")
            _, times = device(number, draw)
            places = draw.sample(range(len(next(iter(proxy.runs.values())))), SEEDS * 2)
            runs = proxy.some(places[:SEEDS])
            case = {
                "case": f"{proxy.key} {target.key.workload} {number}",
                "family": target.key.family,
                "group": f"{target.key.family} {target.key.workload} {target.key.rate:g}",
            }
            for way, bank, decision in _ways(runs, times, true):
                rows.append(
                    case
                    | {
                        "way": way,
                        "regret": regret(decision, times, true),
                        "runs": len(bank.made),
                        "samples": bank.samples,
                        "server": bank.server,
                        "stated": decision.expected_regret,
                        "step_s": decision.step_s,
                        "covered": covered(decision, true),
                    }
                )
            seen = {size: one * math.exp(error[size] * draw.gauss(0, 1)) for size, one in true.items()}
            perfect = Decision(estimators.cheapest(times, true))
            rows.append(case | {"way": FLOOR, "regret": regret(perfect, times, seen)})
    return rows


def _ways(
    runs: dict[int, list[Any]], times: dict[int, float], true: dict[int, float]
) -> Iterator[tuple[str, Bank, Decision]]:
    def way(name: str, choose: Callable[[Bank], Decision]) -> tuple[str, Bank, Decision]:
        bank = Bank(runs)
        return name, bank, choose(bank)

    yield way("ours", lambda bank: estimators.ours(bank, times))
    yield way("paper 6 x 5", lambda bank: estimators.raw_means(bank, times))
    yield way("raw means 6 x 1", lambda bank: estimators.raw_means(bank, times, 1))
    yield way("largest batch", lambda bank: estimators.largest(times))
    yield way("target known", lambda bank: Decision(estimators.cheapest(times, true)))


def regret(decision: Decision, times: dict[int, float], true: dict[int, float]) -> float:
    """Regret relative to the best batch size; a batch size that misses the target has a regret of 100 %."""
    best = estimators.cheapest(times, true)
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


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Figures of every method; what is saved is relative to the paper's sweep of the same cases."""
    ways: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        ways.setdefault(row["way"], []).append(row)
    floor = ways.pop(FLOOR)
    paper = {row["case"]: row for row in ways["paper 6 x 5"]}
    summaries: dict[str, Any] = {}
    for name, some in ways.items():
        beside = [paper[row["case"]] for row in some]
        figures: dict[str, Any] = {
            "all": regrets([row["regret"] for row in some], [row["group"] for row in some]),
            "runs_mean": round(float(np.mean([row["runs"] for row in some])), 2),
            "runs_max": max(row["runs"] for row in some),
        }
        for what in ("samples", "server"):
            share = sum(row[what] for row in some) / sum(row[what] for row in beside)
            figures[f"{what}_saved"] = round(1 - share, 4)
        summaries[name] = figures
    summaries["ours"] |= _own(ways["ours"])
    summaries["ours"][FLOOR] = regrets([row["regret"] for row in floor], [row["group"] for row in floor])
    summaries["ours"]["floor_by"] = grouped(floor, "regret", "group", "family")
    return summaries


def _own(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    stated = [row for row in rows if row["stated"] is not None]
    return {
        "coverage": round(float(np.mean([one for row in rows for one in row["covered"]])), 4),
        "realised_over_stated": round(
            float(np.mean([row["regret"] for row in stated]) / np.mean([row["stated"] for row in stated])), 3
        ),
        "step_ms": {"mean": round(1e3 * float(np.mean([one for row in rows for one in row["step_s"]])), 2)},
    }
