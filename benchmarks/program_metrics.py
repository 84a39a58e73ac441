"""Batch sizes picked from the metrics that a program prints, against the estimate in this process, on recorded runs.

The runs are those of `decisions`, of digits and of characters, to the higher target at both learning rates. The program
makes their steps and prints a metric that reaches the target with the recorded samples.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.decisions.command import RUNS
from benchmarks.decisions.profiling_part import device
from benchmarks.decisions.sweeps import Sweep, read
from benchmarks.timing import keep
from wattune.program.workload import ProgramWorkload
from wattune.proxy import estimate
from wattune.sample_efficiency.choice import LogTimes, choose
from wattune.sample_efficiency.posterior import Observation
from wattune.sample_efficiency.scheduler import RunScheduler

FAMILIES = {"mnist": "digits", "text": "characters"}
SEEDS, FINE, EPOCH = 10, 256, 1408
"""Repetitions, and samples between two metrics: of the estimate in this process, and of a program's epochs."""

PROGRAM = """
import json, os, sys
from sitecustomize import Stamps
size, seed, every = map(int, sys.argv[1:])
stamps, target, samples = Stamps(os.environ["WATTUNE_STEPS"]), json.load(open("runs.json"))[str(size)][seed % 10], 0
while True:
    samples += size
    stamps.stamp(0)
    if samples % every < size:
        print("metric", samples / target)
"""


def main() -> None:
    """Estimate, and store how much longer training takes with the batch sizes picked from what the program prints."""
    figures: dict[str, dict[str, list[float]]] = {}
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("train.py").write_text(PROGRAM)
        for sweep in read(RUNS):
            if (sweep.key.role, sweep.key.quantile) == ("proxy", 0.95) and sweep.key.family in FAMILIES:
                of_family = figures.setdefault(FAMILIES[sweep.key.family], {"in process": [], "fine": [], "epoch": []})
                for number in range(SEEDS):
                    for way, time_s in _times(sweep, number).items():
                        of_family[way].append(time_s)
    keep("program_metrics", {name: _summary(ways) for name, ways in figures.items()})


def _times(sweep: Sweep, number: int) -> dict[str, float]:
    """Time to the target with each way's pick, over the time of the best batch size, on one random board."""
    seconds = device(number, random.Random(number))[1]
    times: LogTimes = {size: (math.log(one), 0.0) for size, one in seconds.items()}
    runs = {size: [own[(at + number) % SEEDS].samples for at in range(SEEDS)] for size, own in sweep.runs.items()}
    Path("runs.json").write_text(json.dumps(runs))
    picks = {"in process": _own_pick(runs, times)}
    for way, every in (("fine", FINE), ("epoch", EPOCH)):
        command = f"{sys.executable} -S train.py {{batch_size}} {{seed}} {every}"
        program = ProgramWorkload(command, tuple(runs), target=1.0, metric="metric (.*)")
        best = estimate(program, log_step_times=times).best
        assert best is not None
        picks[way] = best
    cost = {size: one * mean(runs[size]) for size, one in seconds.items()}
    return {way: cost[size] / min(cost.values()) for way, size in picks.items()}


def _own_pick(runs: dict[int, list[float]], times: LogTimes) -> int:
    scheduler, seen = RunScheduler(tuple(sorted(runs)), log_step_times=times, whole=True), list[Observation]()
    while (size := scheduler.next(seen)) is not None:
        seed = sum(one.batch_size == size for one in seen)
        samples = FINE * math.ceil(runs[size][seed] / FINE)
        seen.append(Observation(size, samples, True, seed, FINE / samples / math.sqrt(12)))
    return choose(scheduler.posterior, times).best


def _summary(ways: dict[str, list[float]]) -> dict[str, Any]:
    """How much longer training takes with the picks of each way than with those of the estimate in this process."""
    own = ways.pop("in process")
    longer = {way: [a / b - 1 for a, b in zip(times, own, strict=True)] for way, times in ways.items()}
    return {
        "cases": len(own),
        "longer": {way: mean(each) for way, each in longer.items()},
        "longest": {way: max(each) for way, each in longer.items()},
        "same": {way: sum(one == 0 for one in each) for way, each in longer.items()},
    }
