"""Boards measured by users (`docs/contributed/*.json`), beside rows computed from recorded public data.

`python -m benchmarks contributed FOLDER` computes those rows from a folder with BoFL's recordings (`benchmarks.bofl`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import bofl
from benchmarks.timing import keep
from wattune.errors import InputError
from wattune.records import Contribution, ProfileCell
from wattune.reporting.contribution_text import HEAD, WorkloadRow, short_mode, workload_row, workload_rows

NAME = "recorded_boards"
FOLDER = Path(__file__).parent.parent / "docs" / "contributed"

BOARD = "Jetson TX2"
MODE = "CPU and memory clocks at their highest; CPU, memory, GPU and SoC rails"
DEGREE = 3
"""Degree of the polynomials in the logarithm of the clock that smooth the logarithms of time and power."""


def recorded_row(file: str, folder: Path) -> WorkloadRow:
    """The row of one recording, over the GPU's clocks and smoothed. Raises: InputError."""
    points = bofl.points(folder, file)
    cpu, memory = (max(knobs[name] for knobs in points) for name in ("cpu_clock_mhz", "memory_clock_mhz"))
    highest = {
        knobs["clock_mhz"]: figures
        for knobs, figures in points.items()
        if (knobs["cpu_clock_mhz"], knobs["memory_clock_mhz"]) == (cpu, memory)
    }
    clocks_mhz = sorted(highest)
    means = [np.mean(highest[mhz], axis=0) for mhz in clocks_mhz]
    smooth_s, smooth_w = (_smooth(clocks_mhz, [float(mean[i]) for mean in means]) for i in (0, 1))
    workload, batch_size = bofl.WORKLOADS[file]
    cells = [
        ProfileCell(batch_size=batch_size, clock_mhz=mhz, step_s=step_s, power_mean_w=power_w, power_peak_w=power_w)
        for mhz, step_s, power_w in zip(clocks_mhz, smooth_s, smooth_w, strict=True)
    ]
    row = workload_row(workload, cells)
    assert row is not None
    return row


def _smooth(clocks_mhz: Sequence[float], values: Sequence[float]) -> list[float]:
    x = [math.log(mhz) for mhz in clocks_mhz]
    return [float(value) for value in np.exp(np.polyval(np.polyfit(x, np.log(values), DEGREE), x))]


def markdown(contributions: Sequence[Contribution], recorded: dict[str, Any]) -> str:
    """One row for each board, mode and workload: contributed ones first, then the recorded ones."""
    lines = [f"| board | mode | {' | '.join(HEAD)} | origin |", "|---" * (len(HEAD) + 3) + "|"]
    for contribution in contributions:
        board, kind = contribution.board, contribution.provenance.kind
        for row in workload_rows(contribution):
            lines.append(f"| {board.name} | {short_mode(board.mode)} | {' | '.join(row.cells())} | {kind} |")
    for fields in recorded["rows"]:
        cells = " | ".join(WorkloadRow(**fields).cells())
        lines.append(f"| {recorded['board']} | {recorded['mode']} | {cells} | {recorded['source']} |")
    return "\n".join(lines) + "\n"


def contributions(folder: Path = FOLDER) -> list[Contribution]:
    """The contributed files, measured ones only."""
    records = [Contribution.load(path) for path in sorted(folder.glob("*.json"))]
    return [record for record in records if record.provenance.kind == "measured"]


def main(arguments: list[str]) -> None:
    """Compute the recorded rows. Raises: InputError."""
    if len(arguments) != 1:
        raise InputError("python -m benchmarks contributed", value=" ".join(arguments), allowed="FOLDER")
    rows = [asdict(recorded_row(file, Path(arguments[0]))) for file in bofl.WORKLOADS]
    rounded = [{k: float(f"{v:.3g}") if isinstance(v, float) else v for k, v in row.items()} for row in rows]
    result = {"board": BOARD, "mode": MODE, "source": bofl.SOURCE, "smoothing_degree": DEGREE, "rows": rounded}
    keep(NAME, result)
