"""Training on simulated boards with one clock under a guard that slices, over the best fixed clock by exact power."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from benchmarks.session_worlds import TASKS, work_of
from wattune.devices import Device, open_device
from wattune.point import BatchShape, Knobs
from wattune.records import StepWork
from wattune_agent.cap_guard import CapGuard
from wattune_agent.cap_level import CapLevel, Sensing
from wattune_agent.guarded import PERIOD_S, QUICK_S
from wattune_agent.power_log import PowerTable
from wattune_agent.slicing import SLICE_S, gains_for

BOARDS = ("sim:jetson-nano", "sim:jetson-tx2-nx", "sim:jetson-orin-nano")
WORKLOADS = tuple(task for task in TASKS if task.name in ("small-cnn", "resnet18"))
CAPS = (0.35, 0.55, 0.75)
"""Caps as shares of the way from the mean power at the lowest clock to that at the highest one."""

BEGIN_S, SECONDS = 120.0, 240.0
ABOVE = 1.02
SWITCH_S = (0.01, 0.001)
"""A quick clock's figures, as ``doctor --try`` measures them; a simulated clock switches at once."""


def training() -> list[dict[str, Any]]:
    """A row for each board, workload and cap: throughput over the best fixed clock, and seconds above the cap."""
    return [row for spec in BOARDS for task in WORKLOADS for row in _rows(spec, task)]


def _rows(spec: str, task: Any) -> list[dict[str, Any]]:
    work = work_of(task, BatchShape(task.user, task.user))
    (knob,) = open_device(spec).knobs
    fixed = {mhz: _steps(spec, work, lambda device, mhz=mhz: device.at(Knobs(clock_mhz=mhz))) for mhz in knob.values}
    lowest_w, highest_w = (fixed[mhz]["mean_w"] for mhz in (knob.values[0], knob.values[-1]))
    rows = []
    for share in CAPS:
        cap_w = lowest_w + share * (highest_w - lowest_w)
        kept = {mhz: one["rate"] for mhz, one in fixed.items() if one["peak_w"] <= cap_w}
        best = max(kept.values(), default=fixed[knob.values[0]]["rate"])
        found = _steps(spec, work, lambda device: _guarded(device, cap_w), above_w=ABOVE * cap_w)  # noqa: B023
        row = {"board": spec, "workload": task.name, "cap_w": round(cap_w, 3), "over_fixed": found["rate"] / best}
        rows.append({**row, "above_s": found["above_s"]})
    return rows


def _steps(
    spec: str, work: StepWork, inside: Callable[[Device], Any], above_w: float | None = None
) -> dict[str, float]:
    """Steps a second, exact powers, and the time above a power, of training inside a context, after its beginning."""
    device = open_device(spec)
    means_w: list[float] = []
    with ExitStack() as stack:
        stack.enter_context(inside(device))
        _train(device, work, BEGIN_S)
        truth = device.ground_truth(above_w, 1.0)
        assert truth is not None
        stack.enter_context(device.every(0.1, lambda: means_w.append(truth.window_mean_w())))
        begin_s = device.now_s()
        steps = _train(device, work, SECONDS)
        figures = truth.figures()
        rate = steps / (device.now_s() - begin_s)
    mean_w, peak_w = statistics.fmean(means_w[10:]), max(means_w[10:])
    return {"rate": rate, "mean_w": mean_w, "peak_w": peak_w, "above_s": figures.above_cap_s or 0.0}


def _train(device: Device, work: StepWork, seconds: float) -> int:
    """Number of steps until at least so much time has passed."""
    end_s, steps = device.now_s() + seconds, 0
    while device.now_s() < end_s:
        with device.step(work):
            steps += 1
    return steps


def _guarded(device: Device, cap_w: float) -> ExitStack:
    """A context in which the guard's rule holds the cap, as ``wattune guard`` asks it."""
    sensor, (knob,) = device.sensor, device.knobs
    board = {"window_s": sensor.window_s, "period_s": sensor.period_s, "lag_s": sensor.lag_s, "switch_s": SWITCH_S}
    gains = gains_for(board, knob.values, 1.0)
    assert gains is not None
    stack = ExitStack()
    setting = stack.enter_context(device.at(Knobs(clock_mhz=knob.values[-1])))

    def change(mhz: float) -> None:
        setting.change(Knobs(clock_mhz=mhz))

    level = CapLevel(PowerTable.guess(knob.values), cap_w, Sensing.of_board(board, 1.0), gains=gains)
    guard = CapGuard(knob.values, change, level, switch=change)
    period_s = PERIOD_S / 2 if sensor.window_s < QUICK_S else PERIOD_S
    # The reading first: at one moment, a rule decides once.
    stack.enter_context(device.every(period_s, lambda: guard(device.now_s(), device.power_w())))
    if period_s > SLICE_S:
        stack.enter_context(device.every(SLICE_S, lambda: guard.tick(device.now_s())))
    return stack
