"""A table of measurements in a file, one cell per row: the short way to write a profile."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from wattune.errors import RecordError
from wattune.point import KNOBS, OperatingPoint
from wattune.records import ProfileCell, ProfileTable, provenance
from wattune.tables import AS_KNOWN, Layout, find_columns, read_table

REQUIRED = ("batch_size", "step_s", "power_w")
"""Columns that a table must have, in any order."""

OPTIONAL = ("micro_batch_size", *KNOBS, "step_std_s", "power_std_w")
"""Columns that it may have. A knob's column has a value in every row; the others may have empty cells."""

WHOLE = ("batch_size", "micro_batch_size", "cpu_cores")

WORKLOAD = "recorded workload"
"""Name of the workload of a table, which does not say what was trained."""


MEANING = (
    "step_s is seconds of one optimizer step (not of an epoch) at a batch size, power_w the mean power (not energy)"
)


def read_profile(path: Path, layout: Layout = AS_KNOWN) -> ProfileTable:
    """Read the measurements in a table with the columns ``REQUIRED`` and any of ``OPTIONAL``.

    The file has no peak power: a cell's peak is its mean. Raises: RecordError if the file cannot be read, has other
    columns, a value that is not a positive number, or a cell twice.
    """
    cells: list[ProfileCell] = []
    places: dict[OperatingPoint, str] = {}
    table = read_table(path)
    columns = find_columns(table, REQUIRED, OPTIONAL, layout=layout, is_strict=True, meaning=MEANING)
    for row in table.rows:
        cell = _cell({name: (row.cells[one.at], one.factor) for name, one in columns.items()}, row.where)
        if cell.point in places:
            raise RecordError(
                f"{row.where} is a duplicate cell",
                value=str(cell.point),
                allowed=f"each once; the first is in {places[cell.point].rpartition(', ')[2]}",
            )
        places[cell.point] = row.where
        cells.append(cell)
    if not cells:
        raise RecordError(f"{path} has no cells", allowed="one row per cell")
    return ProfileTable(
        device=path.stem,
        workload=WORKLOAD,
        cells=tuple(sorted(cells, key=lambda cell: cell.point.order)),
        provenance=provenance("recorded", device=path.stem),
    )


def _cell(texts: dict[str, tuple[str, float]], line: str) -> ProfileCell:
    values: dict[str, Any] = {}
    for name, (text, factor) in texts.items():
        if text or name in REQUIRED or name in KNOBS:
            values[name] = _value(name, text, line) * (1 if factor == 1.0 else factor)
    if values.get("micro_batch_size", 1) > values["batch_size"]:
        raise RecordError(
            f"{line}: micro_batch_size", value=values["micro_batch_size"], allowed=f"at most {values['batch_size']}"
        )
    if values.get("micro_batch_size") == values["batch_size"]:
        del values["micro_batch_size"]
    power_w = values.pop("power_w")
    return ProfileCell(**values, power_mean_w=power_w, power_peak_w=power_w)


def _value(name: str, text: str, line: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    is_whole, is_spread = name in WHOLE, "_std_" in name
    if not (0 < value < math.inf or (is_spread and value == 0)) or (is_whole and value != int(value)):
        kind = "a whole number from 1 on" if is_whole else "a number, 0 or more" if is_spread else "a number above 0"
        raise RecordError(f"{line}: {name}", value=text or "empty", allowed=kind)
    return int(value) if is_whole else value
