"""Time and energy of GPU training by power limit: the planned limit under a cap, beside one equal to the cap.

A power limit is no statement of what is drawn: a job that waits for its data draws as much at a high limit as at a low
one. Each limit was measured once, over 40 steps, so a pick is judged by the window that it was chosen from, and a gain
of a few percent is within the scatter of one window.

Source of the data: github.com/ml-energy/zeus, tests/profile_data, Apache-2.0. See README.md here for its columns.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wattune.cap import PowerCap
from wattune.errors import CapError
from wattune.planning import plan
from wattune.records import ProfileCell, ProfileTable, provenance

STEPS = 40
"""Training steps of each window."""

BATCH_SIZE = 1
"""Stands for the batch size, which the recordings do not state: each of them has one."""


def read(path: Path) -> ProfileTable:
    """Read the recording of one job as a profile by the power limit of each GPU; powers are those of all GPUs."""
    cells = []
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            seconds = float(row["elapsed_time"])
            energy_j = sum(float(value) for name, value in row.items() if name.endswith("_energy"))
            cells.append(
                ProfileCell(
                    batch_size=BATCH_SIZE,
                    power_limit_w=float(row["window_name"].rsplit("_", 1)[1]),
                    step_s=seconds / STEPS,
                    power_mean_w=energy_j / seconds,
                    power_peak_w=energy_j / seconds,
                    steps=STEPS,
                )
            )
    return ProfileTable(
        device=path.stem,
        workload=path.stem,
        algorithm="backprop",
        cells=tuple(sorted(cells, key=lambda cell: cell.power_limit_w or 0.0)),
        provenance=provenance("recorded"),
    )


def cases(folder: Path) -> list[dict[str, Any]]:
    """Every recording under a cap of each of its limits, times the number of GPUs."""
    rows = []
    for path in sorted(folder.glob("*.csv")):
        table, gpus = read(path), path.stem.count(",") + 1
        for nominal in table.cells:
            assert nominal.power_limit_w is not None
            cap_w = nominal.power_limit_w * gpus
            try:
                chosen = plan(table, cap=PowerCap(cap_w))
            except CapError:
                continue
            pick = next(cell for cell in table.cells if cell.point == chosen.point)
            time, energy = (_ratio(nominal, pick, what) for what in ("time", "energy"))
            over = (nominal.power_mean_w or 0.0) > cap_w
            rows.append({"job": path.stem, "gpus": gpus, "time": time, "energy": energy, "nominal_over": over})
    return rows


def _ratio(nominal: ProfileCell, pick: ProfileCell, what: str) -> float:
    assert nominal.step_s is not None
    assert pick.step_s is not None
    time = nominal.step_s / pick.step_s
    return time if what == "time" else time * (nominal.power_mean_w or 0.0) / (pick.power_mean_w or 1.0)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means of time and energy with a limit equal to the cap, relative to the pick, for each job."""
    figures: dict[str, Any] = {}
    for job in dict.fromkeys(row["job"] for row in rows):
        own = [row for row in rows if row["job"] == job]
        figures[job] = {
            "gpus": own[0]["gpus"],
            "caps": len(own),
            **{
                what: round(
                    math.exp(float(np.mean([math.log(row[what]) for row in own if not row["nominal_over"]]))), 4
                )
                for what in ("time", "energy")
            },
            "nominal_over": sum(row["nominal_over"] for row in own),
        }
    return figures
