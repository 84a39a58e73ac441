"""Options and arguments that several commands take, each with its one help text."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated

import typer

from wattune.errors import InputError

WorkloadFile = Annotated[
    Path | None, typer.Argument(metavar="WORKLOAD", help="Workload file; without one the built-in example.")
]
DeviceSpec = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="A name from `wattune devices`, or a board file.")
]
Cap = Annotated[str, typer.Option("--cap", metavar="WATTS", help="Power limit such as 4.5W, or none.")]
File = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Where the record goes, by default here by its own name; never overwritten.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the record as JSON, and nothing else.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what was interrupted.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**32 - 1, help="Seed of the training.")]
Seeds = Annotated[int, typer.Option("--seeds", metavar="N", min=1, max=1000, help="Trainings per batch size.")]
Processes = Annotated[
    int | None, typer.Option("--processes", metavar="N", min=1, help="Trainings at a time; by default one a core.")
]
Strategy = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="WHICH",
        help="full: every batch size and clock; staircase: those along the limit. By default staircase under a limit.",
    ),
]
Margin = Annotated[str, typer.Option("--margin", metavar="WATTS", help="Stay this much below the limit.")]
ProfileFile = Annotated[Path, typer.Argument(metavar="PROFILE", help="A profile record.")]
EfficiencyFile = Annotated[Path, typer.Argument(metavar="EFFICIENCY", help="An efficiency record.")]

_WATTS = re.compile(r"(?P<number>[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)\s*(?P<unit>mW|[wW])?", re.ASCII)


def cap_w(text: str) -> float | None:
    """A power limit in watts, None for "none". Raises: InputError."""
    if text.strip().lower() == "none":
        return None
    value = _watts(text)
    if value is None or value <= 0:
        raise InputError("--cap", value=text, allowed="a limit above zero such as 4.5W, 4500mW or 4.5, or none")
    return value


def margin_w(text: str) -> float:
    """A margin in watts. Raises: InputError."""
    value = _watts(text)
    if value is None or value < 0:
        raise InputError("--margin", value=text, allowed="watts from 0 on, such as 0.2W or 200mW")
    return value


def _watts(text: str) -> float | None:
    match = _WATTS.fullmatch(text.strip())
    if match is None:
        return None
    value = float(match["number"]) / (1000 if match["unit"] == "mW" else 1)
    return value if math.isfinite(value) else None
