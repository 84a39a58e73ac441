"""`python -m benchmarks decisions [PART ...] [--sweeps RUNS.csv] [--zeus DIR] [--limits DIR] [--tx2 DIR]`.

`python -m benchmarks decisions train --data DIR` makes fresh training runs instead.

Without PART, all parts run; a single part replaces its own results and keeps those of the others.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.decisions import (
    efficiency_part,
    energy_goals,
    energy_probing,
    goals,
    pipeline_part,
    power_limits,
    profiling_part,
    sweeps,
    tables,
    traces,
)
from benchmarks.decisions.fresh_runs import NOISE, RUNS, train
from benchmarks.timing import RESULTS, machine
from wattune.files import write_json

WORK = Path("build") / "decisions"
"""Folder of the fresh runs' learning curves, from which they resume."""

RESULT = RESULTS / "decisions.json"
PARTS = ("efficiency", "goals", "gpus", "limits", "pipeline", "profiling")

FOLDERS = {"goals": ("zeus", "tx2"), "gpus": ("zeus",), "limits": ("limits",)}
"""Part -> its folders of recordings; the other parts need none."""


def main(arguments: list[str]) -> None:
    """Compare, print and store the results; or train."""
    options = _options(arguments)
    if options.parts == ["train"]:
        torch.set_num_threads(1)
        train(options.data, WORK)
        return

    def recorded() -> list[sweeps.Sweep]:
        return sweeps.read(RUNS) + (sweeps.read(options.sweeps) if options.sweeps else [])

    compared: dict[str, Callable[[], dict[str, Any]]] = {
        "efficiency": lambda: efficiency_part.summary(efficiency_part.cases(recorded(), sweeps.noise_scales(NOISE))),
        "goals": lambda: {
            **energy_goals.summary(energy_goals.cases(options.zeus)),
            "tx2": energy_probing.summary(energy_probing.cases(options.tx2)),
        },
        "gpus": lambda: traces.summary(traces.cases(options.zeus)),
        "limits": lambda: power_limits.summary(power_limits.cases(options.limits)),
        "pipeline": lambda: pipeline_part.summary(pipeline_part.cases(recorded())),
        "profiling": lambda: profiling_part.summary(profiling_part.cases()),
    }
    figures: dict[str, Any] = {}
    for name in options.parts or _available(options):
        begun_s = time.perf_counter()
        summary = compared[name]()
        seconds = round(time.perf_counter() - begun_s, 1)
        print(f"\n{name} ({seconds:.0f} s)\n\n{tables.TABLES[name](summary)}", flush=True)
        figures = json.loads(RESULT.read_text()) if RESULT.is_file() else {"benchmark": "decisions"}
        figures |= {name: summary, "machine": machine(), "seconds": figures.get("seconds", {}) | {name: seconds}}
        if not {"efficiency", "pipeline", "profiling"} - figures.keys():
            figures["targets"] = goals.goal_results(figures)
        write_json(RESULT, figures)
    if "targets" in figures:
        print(f"\n{tables.targets(figures['targets'])}")


def _available(options: argparse.Namespace) -> list[str]:
    """The parts whose data is there."""
    return [part for part in PARTS if all(getattr(options, name) is not None for name in FOLDERS.get(part, ()))]


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks decisions")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}, or train alone")
    parser.add_argument("--sweeps", type=Path, help="recorded runs beside the fresh ones, in the same columns")
    parser.add_argument("--zeus", type=Path, help="folder of Zeus' traces: summary_train.csv, summary_power_*.csv")
    parser.add_argument("--limits", type=Path, help="folder of recordings by power limit; see README.md here")
    parser.add_argument("--tx2", type=Path, help="folder of BoFL's recordings of a Jetson TX2")
    parser.add_argument("--data", type=Path, help="folder of the data sets to train on; see README.md here")
    options = parser.parse_args(arguments)
    if options.parts != ["train"] and (unknown := set(options.parts) - set(PARTS)):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; allowed: {', '.join(PARTS)}, or train alone")
    if options.parts == ["train"] and options.data is None:
        parser.error("train needs --data DIR")
    for part in options.parts:
        for name in FOLDERS.get(part, ()):
            if getattr(options, name) is None:
                parser.error(f"{part} needs --{name} DIR")
    return options
