"""The built-in example on both simulated boards under one cap. Power and time are simulated."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import wattune
from benchmarks.timing import keep
from wattune.records import Comparison, ProfileTable, TrainingRecord

BOARDS = {"sim:jetson-nano": 4.5, "sim:jetson-tx2-nx": 6.8}
"""Board -> cap in watts: the middle of the range that the example draws over all points of the board."""


def board(device: str, cap_w: float, folder: Path) -> dict[str, Any]:
    """One board's figures."""
    full = folder.with_suffix(".json")
    wattune.profile(device).save(full)
    wattune.run(device, cap_w=cap_w, output=folder, profile=full, compare=True)
    profile = ProfileTable.load(folder / "profile.json")
    training = TrainingRecord.load(folder / "training.json")
    comparison = Comparison.load(folder / "comparison.json")
    return {
        "device": device,
        "cap_w": cap_w,
        "rows": [row.model_dump(mode="json") for row in comparison.rows],
        "training": {"time_s": training.time_s},
        "profile": {
            "cells": len(profile.cells),
            "time_s": profile.cost.time_s if profile.cost else None,
            "share_of_this_training": training.profiling_share,
            "pays_after_trainings": training.pays_after_trainings,
        },
    }


def main() -> None:
    """Measure, and store the results."""
    with tempfile.TemporaryDirectory() as folder:
        boards = [board(device, cap, Path(folder) / str(i)) for i, (device, cap) in enumerate(BOARDS.items())]
    keep("example", {"boards": boards})
