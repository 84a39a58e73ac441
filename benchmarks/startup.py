"""Time of `wattune --help` as a whole process; aim 0.5 s."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.timing import keep, median_s

AIM_S = 0.5


def main() -> None:
    """Measure, and store the results."""
    command = str(Path(sys.executable).parent / "wattune")
    help_ = median_s(lambda: subprocess.run([command, "--help"], check=True, capture_output=True), repeats=15)
    keep("startup", {**help_, "over_aim": help_["median_s"] / AIM_S})
