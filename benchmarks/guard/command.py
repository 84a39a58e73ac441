"""The guard's rule on fake boards, beside hysteresis and a PI controller.

`python -m benchmarks guard [tune|rest]`: loads that were not used to choose any constant, or those that were, under
three caps, by four sensors, on the ladders of two boards. Virtual time and seeded noise: the same figures each time.
Figures are of 5 minutes after the first: the share of the time in which the exact mean over a second is more than 2 %
above the cap, the work done over the work at the highest constant clock whose mean never exceeds the cap, and clock
changes. With `rest`, only what the loads do not show (``rest``).
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benchmarks.guard.board import LADDERS, SENSORS, TICK_S, FakeSensor, Ladder, run
from benchmarks.guard.loads import JUDGE, TUNE, Load
from benchmarks.guard.rest import rest
from benchmarks.guard.rules import RULES
from benchmarks.timing import RESULTS, keep, measured_at
from wattune.errors import InputError

CAPS = (0.6, 0.75, 0.9)
"""Caps as shares of the power under full load."""

BEGIN_S, END_S = 60.0, 360.0
ABOVE = 1.02


def main(arguments: Sequence[str] = ()) -> None:
    if list(arguments) not in ([], ["tune"], ["rest"]):
        raise InputError("arguments of guard", value=" ".join(arguments), allowed="tune, rest, or none")
    if list(arguments) == ["tune"]:
        show(measure("tune"))
        return
    # The former rule is gone, its figures stay.
    kept = json.loads((RESULTS / "guard.json").read_text())
    measured = kept["measured_at"]
    if not arguments:
        kept |= {"seconds": END_S - BEGIN_S, "caps": CAPS, "rules": measure("judge")}
        measured["rules"] = measured_at()
    found = rest()
    kept |= found
    measured |= dict.fromkeys(found, measured_at())
    keep("guard", {key: value for key, value in kept.items() if key not in ("benchmark", "machine")})


def measure(half: str, rules: Sequence[str] = tuple(RULES)) -> dict[str, Any]:
    names = TUNE if half == "tune" else JUDGE
    with ProcessPoolExecutor(2) as pool:
        jobs = [(half, name, ladder, tuple(rules)) for name in names for ladder in LADDERS]
        rows = [row for found in pool.map(_cases, jobs) for row in found]
    return {rule: _summary([row for row in rows if row["rule"] == rule]) for rule in rules}


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    sensors = {sensor.name: _means([row for row in rows if row["sensor"] == sensor.name]) for sensor in SENSORS}
    loads = {name: _means([r for r in rows if r["load"] == name]) for name in dict.fromkeys(r["load"] for r in rows)}
    return {"all": _means(rows), "by_sensor": sensors, "by_load": loads}


def _means(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {
        name: round(statistics.fmean(row[name] for row in rows), 4) for name in ("above_percent", "work", "changes")
    }


def _cases(job: tuple[str, str, Ladder, tuple[str, ...]]) -> list[dict[str, Any]]:
    half, name, ladder, rules = job
    load = (TUNE if half == "tune" else JUDGE)[name]
    constant = [_constant(ladder, load, setting) for setting in range(len(ladder.clocks_mhz))]
    rows = []
    for share in CAPS:
        cap_w = share * ladder.full_w
        best = max(work for highest_w, work in constant if highest_w <= cap_w or highest_w == constant[0][0])
        rows += [
            {"rule": rule, "load": name, "sensor": sensor.name, **_one(ladder, load, sensor, rule, cap_w, best)}
            for sensor in SENSORS
            for rule in rules
        ]
    return rows


def _constant(ladder: Ladder, load: Load, setting: int) -> tuple[float, float]:
    """The highest mean over a second and the work at one setting."""
    trace = run(ladder, load, SENSORS[0], lambda time_s, power_w: setting, END_S)
    return max(trace.means_w(BEGIN_S)), _work(trace.work_s)


def _one(ladder: Ladder, load: Load, sensor: FakeSensor, rule: str, cap_w: float, best: float) -> dict[str, float]:
    trace = run(ladder, load, sensor, RULES[rule](ladder, sensor, cap_w), END_S)
    means_w = trace.means_w(BEGIN_S)
    above = sum(mean_w > ABOVE * cap_w for mean_w in means_w)
    return {
        "above_percent": 100 * above / len(means_w),
        "work": _work(trace.work_s) / best,
        "changes": trace.changes(BEGIN_S),
    }


def _work(work_s: list[float]) -> float:
    return work_s[-1] - work_s[round(BEGIN_S / TICK_S)]


def show(found: dict[str, Any]) -> None:
    for rule, summary in found.items():
        for part in ("by_load", "by_sensor"):
            for name, one in summary[part].items():
                sys.stdout.write(f"{rule:12} {name:20} {one}\n")
        sys.stdout.write(f"{rule:12} {'all':20} {summary['all']}\n")
