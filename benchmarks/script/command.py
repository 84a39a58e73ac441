"""Clocks for a program whose steps are only seen from outside, on a recorded Jetson TX2 with three clocks.

`python -m benchmarks script FOLDER` needs a folder with BoFL's recordings (`benchmarks.bofl`). A program waits
5 s and then makes rounds, in virtual time: each draws what was recorded at its setting. Readings come ten times a
second with noise of 2 %. The guard's `ScriptController` is told of each round. Regrets and losses are by the smoothed
truth (`benchmarks.jetsons`), over the fastest setting that stays under the cap: a regret is of the best setting that
was measured by then, a loss of all rounds until then, with those that measured. Workload CIFAR10 with seed 0
was used to choose constants and is left out.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks import bofl
from benchmarks.jetsons import Recording, load
from benchmarks.timing import folder_of, keep, measured_at
from wattune.cap import PowerCap
from wattune.devices.replay import Noise, ReplayDevice
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.power.capped_run import CappedRun
from wattune.program.hook.sitecustomize import VARIABLE, Rounds, Stamps
from wattune.program.rounds import StepPage
from wattune.records import StepWork
from wattune.script.controller import ScriptController

CAPS = 8
SEEDS = 3
NOT_BINDING = 1.2
"""A cap that does not bind, over the highest power that was recorded."""

BEGIN_S, END_S, AGAIN_S = 5.0, 605.0, 60.0
MOMENTS_S = (20, 60, 120, 300)
TICK_S = 0.1
ABOVE = 1.01


class Trace(NamedTuple):
    """One run: the setting in force at moments, steps with their settings, seconds above the cap, what was chosen."""

    at: dict[int, Knobs]
    steps: list[tuple[float, Knobs]]
    above_s: float
    probes: int
    state: dict[str, Any] | None


def run(
    recording: Recording, cap_w: float, seed: int, end_s: float = END_S, remembered: dict[str, Any] | None = None
) -> Trace:
    """Run the program under the guard."""
    device = ReplayDevice(recording.table(), Noise(0.02, TICK_S, seed))
    limit = PowerCap(cap_w).at_sensor(None, device.sensor.window_s)
    [size] = recording.samples
    work = StepWork(samples=size, micro_batch_size=size, data_type="fp32", phases=(), peak_memory_bytes=0)
    drawn: list[float] = []
    steps: list[tuple[float, Knobs]] = []
    at: dict[int, Knobs] = {}
    controller: ScriptController

    def tick() -> None:
        drawn.append(recording.recorded[OperatingPoint(BatchShape.of(size), capped.limiter.knobs)].power_w)

    def read(_: float, power_w: float) -> None:
        controller.reading(device.now_s(), power_w)

    with CappedRun(device, limit, device.combinations()[-1], on_reading=read) as capped:
        controller = ScriptController(device, capped.limiter, remembered=remembered)
        capped.start()
        device.wait(BEGIN_S)
        with device.every(TICK_S, tick):
            while device.now_s() < end_s:
                with device.step(work):
                    pass
                steps.append((device.now_s() - BEGIN_S, capped.limiter.knobs))
                controller.look(len(steps), device.now_s())
                capped.check()
                if len(at) < len(MOMENTS_S) and device.now_s() - BEGIN_S >= MOMENTS_S[len(at)]:
                    at[MOMENTS_S[len(at)]] = controller.best or capped.limiter.knobs
    width = round(1 / TICK_S)
    means = [fmean(drawn[i : i + width]) for i in range(len(drawn) - width + 1)]
    above_s = TICK_S * sum(mean > ABOVE * cap_w for mean in means)
    return Trace(at, steps, above_s, controller.choice.probes, controller.state_dict())


def case(job: tuple[str, str, int, int]) -> dict[str, Any]:
    """Figures of one workload, cap and seed, and of its second run."""
    folder, file, number, seed = job
    recording = replace(load(Path(folder), file), of_first=True)
    truth = {point.knobs: true for point, true in recording.truth.items()}
    caps_w = recording.caps_w(CAPS)
    cap_w = [*caps_w, NOT_BINDING * caps_w[-1]][number]
    best_s = recording.best_s(cap_w)
    first = run(recording, cap_w, seed)
    again = run(recording, cap_w, seed + 100, BEGIN_S + AGAIN_S, first.state)

    def regret(trace: Trace, time_s: int) -> float:
        return truth[trace.at[time_s]].step_s / best_s - 1

    def loss(trace: Trace, until_s: float) -> float:
        taken = [truth[knobs].step_s for moment, knobs in trace.steps if moment <= until_s]
        return sum(taken) / len(taken) / best_s - 1

    chosen = Knobs(first.state["choice"]["chosen"]) if first.state else None
    return {
        "cap": number if number < CAPS else None,
        "regret": {str(seconds): regret(first, seconds) for seconds in MOMENTS_S[1:]},
        "loss": {str(seconds): loss(first, seconds) for seconds in (60, 120, 300, 600)},
        "again_in_force": regret(again, 20),
        "over_gpu_alone": recording.best_s(cap_w, recording.first_alone) / truth[chosen].step_s if chosen else None,
        "probes": first.probes,
        "above_s": first.above_s,
        "pick_above": chosen is not None and truth[chosen].power_w > cap_w,
        "pick_above_1_percent": chosen is not None and truth[chosen].power_w > ABOVE * cap_w,
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over the cases."""
    under_cap = [row for row in rows if row["cap"] is not None]
    lowest, free = [r for r in rows if r["cap"] == 0], [r for r in rows if r["cap"] is None]
    binding = [row for row in under_cap if row["cap"] < CAPS - 1]

    def mean(found: Sequence[dict[str, Any]], name: str, at: str) -> float:
        return round(fmean(row[name][at] for row in found), 4)

    return {
        "cases": len(rows),
        "regret": {at: mean(under_cap, "regret", at) for at in ("60", "120", "300")},
        "regret_lowest_cap": {at: mean(lowest, "regret", at) for at in ("120", "300")},
        "loss_binding": {at: mean(binding, "loss", at) for at in ("60", "120", "300", "600")},
        "loss_not_binding": {at: mean(free, "loss", at) for at in ("300",)},
        "again_in_force": round(fmean(row["again_in_force"] for row in rows), 4),
        "probes": round(fmean(row["probes"] for row in under_cap), 1),
        "over_gpu_alone": round(fmean(min(9.0, row["over_gpu_alone"]) for row in under_cap), 3),
        "picks_above": sum(row["pick_above"] for row in rows),
        "picks_above_1_percent": sum(row["pick_above_1_percent"] for row in rows),
        "above_s": round(fmean(row["above_s"] for row in rows), 2),
        "above_s_most": round(max(row["above_s"] for row in rows), 2),
    }


def main(arguments: list[str]) -> None:
    """Run the cases and store the figures. Raises: InputError without the recordings."""
    folder = folder_of("script", arguments, "the folder of BoFL's recordings")
    first = next(iter(bofl.WORKLOADS))
    jobs = [
        (str(folder), file, number, seed)
        for file in bofl.WORKLOADS
        for seed in range(SEEDS)
        for number in range(CAPS + 1)
        if (file, seed) != (first, 0)
    ]
    measured = measured_at()
    with ProcessPoolExecutor(2) as pool:
        rows = list(pool.map(case, jobs))
    keep("script", {"measured_at": measured, **summary(rows), **hook()})


def hook(steps: int = 100_000, starts: int = 10) -> dict[str, float]:
    """Microseconds that the hook takes of a step, and seconds of CPU of a start of Python."""

    def started_s() -> float:
        begin_s = cpu_s()
        for _ in range(starts):
            subprocess.run([sys.executable, "-c", ""], check=True)
        return (cpu_s() - begin_s) / starts

    def cpu_s() -> float:
        return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])

    with StepPage() as page:
        plain_s = started_s()
        with page.stamped():
            more_s = started_s() - plain_s
            rounds, one = Rounds(Stamps(os.environ[VARIABLE]).stamp), object()
            begin_s = time.process_time()
            for _ in range(steps):
                rounds.step(one)
            step_s = (time.process_time() - begin_s) / steps
    return {"hook_us": round(1e6 * step_s, 2), "start_s": round(more_s, 4)}
