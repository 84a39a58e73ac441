"""CPU time to plan 6 x 12 cells; aim 1 ms. It uses one core, which other programs may share."""

from __future__ import annotations

import time

import wattune
from benchmarks.timing import keep, median_s
from wattune.records import EfficiencyPoint, SampleEfficiency
from wattune.workloads import example_workload


def main() -> None:
    """Measure, and store the results."""
    table = wattune.profile("sim:jetson-nano", example_workload(), strategy="full")
    sizes = table.batch_sizes
    curve = SampleEfficiency(
        workload="synthetic",
        reference_batch_size=sizes[-1],
        points=tuple(EfficiencyPoint(batch_size=b, relative_samples=(1 + b / 64) / 3, samples=3000.0) for b in sizes),
    )
    planning = median_s(lambda: wattune.plan(table, curve, cap_w=4.5), repeats=200, warm_up=20, clock=time.process_time)
    keep("planning", {"cells": len(table.cells), **planning, "over_aim": planning["median_s"] / 1e-3})
