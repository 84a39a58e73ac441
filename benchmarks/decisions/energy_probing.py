"""Guided profiling for the least energy, on the recorded Jetson TX2 with three clocks, beside that for the time.

Recordings, smoothed truth, noise and caps are those of ``benchmarks.jetsons``. Energy is that of a step, and regret how
much more a pick takes than the setting of least energy under the cap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import bofl, jetsons
from benchmarks.jetsons import Recording
from wattune.goal import TIME, Goal
from wattune.point import Knobs

GOALS = {"energy": Goal("energy"), "time": TIME}
FASTEST = "fastest setting under the cap"
"""The pick of someone who knows the truth, for the time."""


def cases(folder: Path, caps: int = jetsons.CAPS) -> list[dict[str, Any]]:
    """Every recording, cap and goal."""
    recordings = [jetsons.load(folder, file) for file in bofl.WORKLOADS]
    return [
        row
        for recording in recordings
        for seed, cap_w in enumerate(recording.caps_w(caps))
        for row in _case(recording, cap_w, seed)
    ]


def _case(recording: Recording, cap_w: float, seed: int) -> list[dict[str, Any]]:
    under = {knobs: true for knobs, true in recording.truth.items() if true.power_w <= cap_w}
    least_j = min(true.step_s * true.power_w for true in under.values())
    fastest = min(under.values())
    rows = [{"way": FASTEST, "energy": fastest.step_s * fastest.power_w / least_j - 1, "time": 0.0}]
    for name, goal in GOALS.items():
        outcome = jetsons.ours(recording, cap_w, seed, goal)
        runs_at = None if outcome.pick is None else jetsons.guarded(recording, cap_w, outcome.pick)
        over = [recording.truth[knobs].power_w / cap_w - 1 for knobs in outcome.probed]
        rows.append(
            {
                "way": f"goal {name}",
                "energy": math.inf if runs_at is None else runs_at.step_s * runs_at.power_w / least_j - 1,
                "time": math.inf if runs_at is None else runs_at.step_s / fastest.step_s - 1,
                "probes": len(outcome.probed),
                "over": sum(share > 0 for share in over),
                "over_by_1_percent": sum(share > 0.01 for share in over),
                "worst_over": max([0.0, *over]),
                "pick_over": _is_over(recording, cap_w, outcome.pick),
            }
        )
    return [row | {"workload": recording.name, "cap_w": cap_w} for row in rows]


def _is_over(recording: Recording, cap_w: float, pick: Knobs | None) -> bool:
    return pick is not None and recording.truth[pick].power_w > cap_w


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Regret in energy, time over the fastest, and probes, for each goal."""
    figures: dict[str, Any] = {}
    for way in dict.fromkeys(row["way"] for row in rows):
        some = [row for row in rows if row["way"] == way]
        found = [row for row in some if math.isfinite(row["energy"])]
        energies = sorted(row["energy"] for row in found)
        figures[way] = {
            "cases": len(some),
            "without_a_pick": len(some) - len(found),
            "energy_regret": round(fmean(energies), 4),
            "energy_regret_p90": round(energies[math.ceil(0.9 * len(energies)) - 1], 4),
            "energy_regret_worst": round(energies[-1], 4),
            "time": round(fmean(row["time"] for row in found), 4),
            "by_workload": {
                name: round(fmean(row["energy"] for row in found if row["workload"] == name), 4)
                for name in dict.fromkeys(row["workload"] for row in found)
            },
        }
        if "probes" in some[0]:
            figures[way] |= {
                "probes": round(fmean(row["probes"] for row in some), 1),
                "probes_most": max(row["probes"] for row in some),
                "probes_over": sum(row["over"] for row in some),
                "probes_over_by_1_percent": sum(row["over_by_1_percent"] for row in some),
                "worst_over": round(max(row["worst_over"] for row in some), 4),
                "picks_over": sum(row["pick_over"] for row in some),
            }
    return figures
