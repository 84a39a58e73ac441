"""Trainers that people use, plain and with wattune: `python -m benchmarks trainers`, about five minutes.

Each program of `examples/trainers` trains a tiny random model three times, each in a process of its own: plain; under
`wattune guard` in a rehearsal, where no line of it changes; and with wattune's two lines where there are some. Weights,
optimizer steps, learning rates, losses and metrics are compared with those of the plain program. Needs, beside the
development environment: `pip install trl sentence-transformers pytorch-ignite skorch`.

The board is the simulated TX2, a hundred times slower, so that a tiny model trains as long as a search needs.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.timing import ROOT, keep

PROGRAM, CAP_W = "examples/trainers/train.py", 5
COMPARED = ("weights", "steps", "rates", "metrics")
PACKAGES = ("transformers", "trl", "sentence-transformers", "accelerate", "lightning", "pytorch-ignite", "skorch")
SLOWER = {"fp32": 0.01, "fp16": 0.01, "achieved_gbps": 0.01, "optimizer_gbps": 0.01}
SLOWER |= {"s_per_operation": 100, "s_per_optimizer_operation": 100}


def slow_board(folder: Path) -> str:
    """Write the board's file; returns its spec."""
    text = (ROOT / "src/wattune/devices/simulator/boards/jetson-tx2.toml").read_text()
    for key, factor in SLOWER.items():
        text = re.sub(rf"(?m)^({key} = )(\S+)", lambda found, by=factor: f"{found[1]}{float(found[2]) * by:g}", text)
    (folder / "slow.toml").write_text(text)
    return f"sim:{folder}/slow.toml"


def figures(command: list[str], board: str) -> dict[str, Any]:
    """What a program prints about its training. Raises: RuntimeError with its last lines if it fails."""
    environment = {**os.environ, "BOARD": board}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("figures ")]
    if done.returncode or not found:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}: {(done.stderr or done.stdout)[-600:]}")
    read: dict[str, Any] = json.loads(found[-1].removeprefix("figures "))
    return read


def of_program(name: str, has_lines: bool, folder: Path) -> dict[str, Any]:
    """A program three ways: what differs from plain, and how many settings of the board were tried meanwhile."""
    board, own = slow_board(folder), [PROGRAM, name]
    plain = figures([sys.executable, *own], board)
    row: dict[str, Any] = {"steps": plain["steps"]}
    options = ["--device", board, "--cap", f"{CAP_W}W", "--expect", "10min", "--fresh", "-o", f"{folder}/{name}.json"]
    ways = {"guard": figures([sys.executable, "-m", "wattune", "guard", *options, "--", "python", *own], board)}
    choice = json.loads((folder / f"{name}.json").read_text())["choice"]
    row["rounds_seen"], tried = choice["rounds"], {"guard": choice["probes"]}
    if has_lines:
        ways["lines"] = figures([sys.executable, *own, "lines"], board)
        tried["lines"] = ways["lines"]["settings"]
    row["differs"] = {way: [part for part in COMPARED if found[part] != plain[part]] for way, found in ways.items()}
    return {**row, "tried": tried}


def main(names: list[str]) -> None:
    """Run the named programs, or all, and store the table."""
    rows, programs = {}, runpy.run_path(str(ROOT / PROGRAM))["PROGRAMS"]
    with tempfile.TemporaryDirectory() as folder:
        for name in names or programs:
            what, _, lines = programs[name]
            rows[name] = {"what": what, "lines": lines, **of_program(name, bool(lines), Path(folder))}
            print(f"{name}: {rows[name]}", flush=True)
    if not names:
        own = {"versions": {package: version(package) for package in PACKAGES}, "programs": rows}
        keep("trainers", own)
