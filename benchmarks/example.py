"""The built-in example on both simulated boards: one cap in full, then a sweep of 20 caps.

In the sweep every rule picks by the proxy's curve, as for a user, and the pick is priced with the target's own runs:
the gain is a realized one, not a prediction. Power and time are simulated.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import wattune
from benchmarks.timing import keep
from wattune.records import Comparison, Plan, ProfileTable, SampleEfficiency, TrainingRecord

BOARDS = {"sim:jetson-nano": 4.5, "sim:jetson-tx2-nx": 6.8}
"""Board -> cap in watts: the middle of the range that the example draws over all points of the board."""
LARGEST, BEST = "largest batch, fixed clock", "best batch, fixed clock"


def board(device: str, cap_w: float, folder: Path) -> dict[str, Any]:
    """One board's figures."""
    full = folder.with_suffix(".json")
    wattune.profile(device).save(full)
    wattune.run(device, cap_w=cap_w, output=folder, profile=full, compare=True)
    profile = ProfileTable.load(folder / "profile.json")
    efficiency = SampleEfficiency.load(folder / "efficiency.json")
    plan = Plan.load(folder / "plan.json")
    training = TrainingRecord.load(folder / "training.json")
    comparison = Comparison.load(folder / "comparison.json")
    sweep = []
    for gain in plan.gain_over_caps:
        if not gain.feasible:
            sweep.append({"cap_w": gain.cap_w, "feasible": False})
            continue
        rows = wattune.compare(
            device, None, profile, efficiency, cap_w=gain.cap_w, folder=folder / "curves" / "target"
        ).rows
        by_rule = {row.rule: row for row in rows}
        pick = by_rule["wattune"]
        sweep.append(
            {
                "cap_w": gain.cap_w,
                "feasible": True,
                "batch_size": pick.batch_size,
                "clock_mhz": pick.clock_mhz,
                "time_s": pick.time_s,
                "over_largest_batch": by_rule[LARGEST].speed_up if LARGEST in by_rule else None,
                "over_best_batch": by_rule[BEST].speed_up if BEST in by_rule else None,
                "above_fastest": pick.above_fastest,
            }
        )
    picks = [row for row in sweep if row["feasible"]]
    both = [row for row in picks if (row["over_largest_batch"] or 0) > 1 and (row["over_best_batch"] or 0) > 1]
    return {
        "device": device,
        "cap_w": cap_w,
        "rows": [row.model_dump(mode="json") for row in comparison.rows],
        "relative_samples": {str(p.batch_size): p.relative_samples for p in efficiency.points},
        "training": {
            "batch_size": plan.batch_size,
            "clock_mhz": plan.clock_mhz,
            "predicted_s": plan.predicted_s,
            "time_s": training.time_s,
            "energy_j": training.energy_j,
            "power_peak_w": training.power_peak_w,
            "above_cap_s": training.above_cap_s,
            "reached": training.reached,
        },
        "profile": {
            "cells": len(profile.cells),
            "time_s": profile.cost.time_s if profile.cost else None,
            "share_of_this_training": training.profiling_share,
            "pays_after_trainings": training.pays_after_trainings,
        },
        "sweep": sweep,
        "different_points": len({(row["batch_size"], row["clock_mhz"]) for row in picks}),
        "caps": len(sweep),
        "beats_both": len(both),
    }


def main() -> None:
    """Measure, and store the results."""
    with tempfile.TemporaryDirectory() as folder:
        boards = [board(device, cap, Path(folder) / str(i)) for i, (device, cap) in enumerate(BOARDS.items())]
    keep("example", {"boards": boards})


if __name__ == "__main__":
    main()
