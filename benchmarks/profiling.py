"""Time of a simulated 72-cell profile of ResNet-8, with counting of the work, without imports; aim 2 s."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.timing import keep, median_s

AIM_S = 2.0
ONE = """
import time
import wattune
from wattune.workloads import example_workload
import wattune.algorithms, wattune.devices, wattune.profiling
import torch._dynamo  # which torch imports itself with the first optimizer
workload = example_workload()
begin = time.perf_counter()
table = wattune.profile("sim:jetson-nano", workload, strategy="full")
print(len(table.cells), table.cost.time_s, time.perf_counter() - begin)
"""


def main() -> None:
    """Measure in fresh processes, because the counted work is cached within one, and store the results."""
    lines: list[list[float]] = []

    def once() -> None:
        out = subprocess.run([sys.executable, "-c", ONE], check=True, capture_output=True, text=True).stdout
        lines.append([float(word) for word in out.split()])

    median_s(once, repeats=7)
    cells, simulated_s, _ = lines[-1]
    times = sorted(line[2] for line in lines[1:])
    median = times[len(times) // 2]
    keep(
        "profiling",
        {
            "cells": int(cells),
            "board_s": simulated_s,
            "median_s": median,
            "min_s": times[0],
            "max_s": times[-1],
            "repeats": len(times),
            "over_aim": median / AIM_S,
        },
    )


if __name__ == "__main__":
    main()
