"""A recorded job of four A40s: steps per second under one budget, against equal limits.

`python -m benchmarks ranks recorded FOLDER`: FOLDER has tables of github.com/ml-energy/zeus, tests/profile_data
(75a8b93, Apache-2.0), named `A40+MODEL+gpu0,1,2,3.csv`: the seconds of 40 steps and the joules of each card, at power
limits that are the same for all four. With equal limits, a budget of B watts is a limit of B / 4. A budget over all
cards allows the fastest recorded limit at which all of them together drew less than B. Tables with unequal limits were
not recorded.
"""

from __future__ import annotations

import csv
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.timing import keep
from wattune.errors import InputError

STEPS = 40
CARDS = 4


class Row(NamedTuple):
    """A limit of each card in watts, with the steps per second and the watts of each card."""

    limit_w: float
    rate_hz: float
    power_w: tuple[float, ...]


def rows_of(path: Path) -> list[Row]:
    """A table, ascending by the limit."""
    with path.open(newline="") as file:
        rows = []
        for line in csv.DictReader(file):
            seconds = float(line["elapsed_time"])
            watts = tuple(float(line[f"gpu{card}_energy"]) / seconds for card in range(CARDS))
            rows.append(Row(float(line["window_name"].rsplit("_", 1)[1]), STEPS / seconds, watts))
    return sorted(rows)


def compare(path: Path) -> dict[str, Any]:
    """Gain over equal limits, at the budgets that equal limits were recorded for."""
    rows = rows_of(path)
    gains = []
    for row in rows:
        budget_w = CARDS * row.limit_w
        if under := [other.rate_hz for other in rows if sum(other.power_w) <= budget_w]:
            gains.append(max(under) / row.rate_hz)
    apart = statistics.fmean(max(row.power_w) / min(row.power_w) - 1 for row in rows)
    return {
        "table": path.stem,
        "budgets": len(gains),
        "gain_mean": statistics.fmean(gains),
        "gain_lowest": min(gains),
        "gain_highest": max(gains),
        "cards_apart": apart,
        "rate_range": max(row.rate_hz for row in rows) / min(row.rate_hz for row in rows) - 1,
    }


def main(folder: str) -> None:
    """Compare, and store the results. Raises: InputError."""
    tables = sorted(Path(folder).glob("A40+*+gpu0,1,2,3.csv"))
    if not tables:
        raise InputError("no table of four A40s in", value=folder, allowed="a folder with A40+MODEL+gpu0,1,2,3.csv")
    keep("ranks_recorded", {"tables": [compare(path) for path in tables]})
