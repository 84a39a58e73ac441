"""`python -m benchmarks decisions [PART ...] [--sweeps RUNS.csv] [--zeus DIR] [--mlperf DIR]`.

Without PART, all parts run; a single part replaces its own results and keeps those of the others.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.decisions import levels_part, mlperf_part, profiling_part, sweeps, traces
from benchmarks.timing import RESULTS, machine, measured_at
from wattune.files import write_json

RUNS = RESULTS / "decisions_runs.csv"
"""Training runs of seven small workloads, ten seeds at each batch size; README.md says how they were made."""

RESULT = RESULTS / "decisions.json"
PARTS = ("gpus", "levels", "mlperf", "pipeline", "profiling")

FOLDERS = {"gpus": "zeus", "mlperf": "mlperf"}
"""Part -> the option that names the folder of its recordings."""


def main(arguments: list[str]) -> None:
    """Compare, and store the results."""
    options = _options(arguments)

    def recorded() -> list[sweeps.Sweep]:
        return sweeps.read(RUNS) + (sweeps.read(options.sweeps) if options.sweeps else [])

    compared: dict[str, Callable[[], dict[str, Any]]] = {
        "mlperf": lambda: mlperf_part.summary(mlperf_part.cases(options.mlperf)),
        "gpus": lambda: traces.summary(traces.cases(options.zeus)),
        "levels": lambda: levels_part.summary(levels_part.cases(sweeps.read(RUNS))),
        "pipeline": lambda: profiling_part.summary(profiling_part.job_cases(recorded()), "group"),
        "profiling": lambda: profiling_part.summary(profiling_part.cases()),
    }
    figures: dict[str, Any] = {}
    for name in options.parts or _available(options):
        begun_s = time.perf_counter()
        summary = compared[name]()
        seconds = round(time.perf_counter() - begun_s, 1)
        print(f"{name}: {seconds:.0f} s", flush=True)
        figures = json.loads(RESULT.read_text()) if RESULT.is_file() else {"benchmark": "decisions"}
        figures |= {
            name: summary,
            "machine": machine(),
            "measured_at": figures.get("measured_at", {}) | {name: measured_at()},
            "seconds": figures.get("seconds", {}) | {name: seconds},
        }
        write_json(RESULT, figures)


def _available(options: argparse.Namespace) -> list[str]:
    """The parts whose data is there."""
    missing = [part for part, option in FOLDERS.items() if getattr(options, option) is None]
    return [part for part in PARTS if part not in missing]


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks decisions")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--sweeps", type=Path, help="recorded runs beside the fresh ones, in the same columns")
    parser.add_argument("--zeus", type=Path, help="folder of Zeus' traces: summary_train.csv, summary_power_*.csv")
    parser.add_argument("--mlperf", type=Path, help="folder of MLPerf's reference convergence points: runs.csv")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; allowed: {', '.join(PARTS)}")
    for part, option in FOLDERS.items():
        if part in options.parts and getattr(options, option) is None:
            parser.error(f"{part} needs --{option} DIR")
    return options
