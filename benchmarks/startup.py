"""CPU time of `wattune --help`, relative to importing what it is made with; aim 1.3 times that."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.timing import keep

REPEATS = 15
IMPORTS = "import typer, rich, pydantic"


def main() -> None:
    """Measure in turns, so that both see the same machine, and store the results."""
    commands = [[str(Path(sys.executable).parent / "wattune"), "--help"], [sys.executable, "-c", IMPORTS]]
    rounds = [[_cpu_s(command) for command in commands] for _ in range(REPEATS + 1)][1:]  # the first fills caches
    help_s, imports_s = (statistics.median(one) for one in zip(*rounds, strict=True))
    ratios = sorted(ours / theirs for ours, theirs in rounds)
    over = {"median": statistics.median(ratios), "min": ratios[0], "max": ratios[-1]}
    keep("startup", {"help_s": help_s, "imports_s": imports_s, "over_imports": over, "repeats": REPEATS})


def _cpu_s(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
