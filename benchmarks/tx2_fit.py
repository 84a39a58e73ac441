"""A fit of ``sim:jetson-tx2`` to recorded cells, with wattune's own model of time and power.

First the times: figures of the board and, for the two workloads whose work cannot be counted, their work. Then the
powers, with the times of the model: power is linear in all its figures once the voltages are known, so every pair of
floor and slope of the voltage has one best set of figures, none of them negative.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares, nnls

from benchmarks.paper.calibration_model import changed, value_of
from benchmarks.tx2_recordings import LSTM, RESNET50, VGG19, VIT, Cell, counted, of_groups
from wattune.devices import SimulatedBoard
from wattune.devices.simulator.roofline import segments
from wattune.records import StepWork

TIME_PLACES = (
    "gpu.efficiency",
    "memory.achieved_gbps",
    "memory.optimizer_gbps",
    "memory.clock_share",
    "host.s_per_operation",
    "host.hidden",
)
POWER_PLACES = (
    "power.base_w",
    "host.clock_w_per_v2ghz",
    "host.busy_w_per_v2ghz",
    "power.leakage_w_per_v3",
    "power.clock_w_per_v2ghz",
    "power.compute_w_per_v2ghz",
    "power.memory_w_per_v2ghz",
    "power.traffic_w_per_gbps",
)
AT_MOST_ONE = ("gpu.efficiency", "memory.clock_share", "host.hidden")
FLOOR_V = 0.8
FLOOR_MHZ = range(650, 900, 25)
SLOPES = tuple(round(0.3 + 0.025 * i, 3) for i in range(13))
"""Rise of the voltage above the floor, relative to it, per GHz."""
FULL_LOAD_WEIGHT = 20.0
"""Weight of a cell with measured VDD_IN: 13 of them count about as much as all the training steps that are fitted."""
BEGIN = {LSTM: (1e11, 6e9, 6000.0), VGG19: (2e10, 3e8, 5e8)}
"""Where the search for a workload's work begins: FLOPs, bytes and launches of the LSTM; FLOPs and bytes of VGG19's
convolutions and the bytes of its other layers."""


def spread(errors: Sequence[float]) -> dict[str, float]:
    """Root mean square, mean, 95th percentile and worst of relative errors."""
    sizes = np.abs(errors)
    return {
        "cells": len(errors),
        "rms": round(float(np.sqrt(np.mean(np.square(errors)))), 4),
        "mean": round(float(np.mean(errors)), 4),
        "p95": round(float(np.quantile(sizes, 0.95)), 4),
        "worst": round(float(sizes.max()), 4),
    }


def work_of(name: str, quantities: Sequence[float]) -> StepWork:
    """The work of a step whose quantities are fitted."""
    first, second, third = quantities
    if name == LSTM:
        return of_groups((first, 0.0, 0.0), (0.0, second, 0.0), (0.0, 0.0, third), samples=8)
    return of_groups((first, second, 0.0), (0.0, third, 0.0), samples=1)


@dataclass(frozen=True)
class FittedBoard:
    """A board, and the work of each workload."""

    board: SimulatedBoard
    works: dict[str, StepWork]

    def step(self, cell: Cell) -> tuple[float, float]:
        """Seconds of the cell's step, and mean watts."""
        parts = segments(self.works[cell.workload], self.board.chip("gpu"), cell.knobs)
        step_s = math.fsum(part.seconds for part in parts)
        energy_j = math.fsum(part.seconds * part.power_w(0.0, 25.0) for part in parts)
        return step_s, energy_j / step_s

    def time_errors(self, cells: Iterable[Cell]) -> list[float]:
        """ln(predicted / recorded seconds) of each cell."""
        return [math.log(self.step(cell)[0] / cell.step_s) for cell in cells]

    def power_errors(self, cells: Iterable[Cell]) -> list[float]:
        """Predicted over recorded power less one, of each cell that has one."""
        return [self.step(cell)[1] / cell.power_w - 1 for cell in cells if cell.power_w is not None]


def fitted_works(board: SimulatedBoard, cells: Sequence[Cell], names: Iterable[str]) -> dict[str, StepWork]:
    """The counted works, and the fitted ones of ``names`` on this board."""
    works = {name: counted(name) for name in (VIT, RESNET50)}
    for name in names:
        own = [cell for cell in cells if cell.workload == name]

        def residuals(x: Any, name: str = name, own: Sequence[Cell] = own) -> list[float]:
            return FittedBoard(board, {name: work_of(name, _scaled(name, x))}).time_errors(own)

        works[name] = work_of(name, _scaled(name, least_squares(residuals, np.ones(3), loss="soft_l1", f_scale=0.05).x))
    return works


def _scaled(name: str, logs: Any) -> tuple[float, ...]:
    # The search begins at 1, since a relative step of 0 is none.
    return tuple(begin * math.exp(float(log) - 1) for begin, log in zip(BEGIN[name], logs, strict=True))


def fit_times(board: SimulatedBoard, cells: Sequence[Cell]) -> FittedBoard:
    """Fit the figures of time to the training steps by least squares that tolerate outliers (soft L1 beyond 5 %)."""
    names = sorted({cell.workload for cell in cells})
    free = [name for name in names if name in BEGIN]
    works = {name: counted(name) for name in names if name not in BEGIN}

    def unpacked(x: Any) -> FittedBoard:
        values = {p: value_of(board, p) * math.exp(float(v) - 1) for p, v in zip(TIME_PLACES, x, strict=False)}
        values = {p: min(1.0, v) if p in AT_MOST_ONE else v for p, v in values.items()}
        own = {
            name: work_of(name, _scaled(name, x[len(TIME_PLACES) + 3 * i : len(TIME_PLACES) + 3 * i + 3]))
            for i, name in enumerate(free)
        }
        return FittedBoard(changed(board, values), {**works, **own})

    def residuals(x: Any) -> list[float]:
        return unpacked(x).time_errors(cells)

    begin = np.ones(len(TIME_PLACES) + 3 * len(free))
    return unpacked(least_squares(residuals, begin, loss="soft_l1", f_scale=0.05, diff_step=1e-5).x)


def voltages_v(clocks_mhz: Iterable[float], floor_mhz: float, slope: float) -> tuple[float, ...]:
    """The voltage at each clock: ``FLOOR_V`` up to ``floor_mhz``, then rising by ``slope`` of it per GHz."""
    return tuple(round(FLOOR_V * (1 + slope * max(0.0, mhz - floor_mhz) / 1e3), 4) for mhz in clocks_mhz)


def _with_voltages(board: SimulatedBoard, floor_mhz: float, slope: float) -> SimulatedBoard:
    curve = voltages_v(board.gpu.clocks_mhz, floor_mhz, slope)
    return board.model_copy(update={"gpu": board.gpu.model_copy(update={"voltage_v": curve})})


def _with_memory_w(board: SimulatedBoard, clock_w: tuple[float, ...]) -> SimulatedBoard:
    return board.model_copy(update={"memory": board.memory.model_copy(update={"clock_w": clock_w})})


def fit_powers(model: FittedBoard, cells: Sequence[Cell]) -> FittedBoard:
    """Fit the figures of power, the voltages and the power of the memory's clocks to cells with a recorded power."""
    clocks_mhz = model.board.memory.clocks_mhz or ()
    count = len(clocks_mhz)
    recorded_mhz = sorted({cell.knobs["memory_clock_mhz"] for cell in cells})
    nothing = _with_memory_w(changed(model.board, dict.fromkeys(POWER_PLACES, 0.0)), (0.0,) * count)
    weights = np.array([FULL_LOAD_WEIGHT**0.5 if cell.workload == VGG19 else 1.0 for cell in cells])
    watts = np.array([cell.power_w for cell in cells], dtype=float)

    def column(board: SimulatedBoard) -> Any:
        return np.array([FittedBoard(board, model.works).step(cell)[1] for cell in cells]) * weights / watts

    def places(board: SimulatedBoard, names: Sequence[str]) -> list[Any]:
        return [column(changed(board, {name: 1.0})) for name in names]

    # Each step of the memory's clock has its own power, none negative, so that the sum never falls.
    begins = [clocks_mhz.index(mhz) for mhz in recorded_mhz[1:]]
    steps = [column(_with_memory_w(nothing, (0.0,) * i + (1.0,) * (count - i))) for i in begins]
    on_voltage = [place for place in POWER_PLACES if place.endswith(("per_v3", "per_v2ghz")) and "host" not in place]
    fixed = [place for place in POWER_PLACES if place not in on_voltage]
    fixed_columns = [*places(nothing, fixed), *steps]
    best: tuple[float, Any, SimulatedBoard] | None = None
    for floor_mhz in FLOOR_MHZ:
        for slope in SLOPES:
            board = _with_voltages(nothing, floor_mhz, slope)
            values, rest = nnls(np.stack([*fixed_columns, *places(board, on_voltage)], axis=1), weights)
            if best is None or rest < best[0]:
                best = rest, values, board
    assert best is not None
    _, values, board = best
    figures = [float(value) for value in values]
    found = dict(zip(fixed, figures, strict=False)) | dict(zip(on_voltage, figures[-len(on_voltage) :], strict=True))
    rises = np.cumsum([0.0, *figures[len(fixed) : len(fixed) + len(steps)]])
    clock_w = tuple(float(rise) for rise in np.interp(clocks_mhz, recorded_mhz, rises))
    return FittedBoard(_with_memory_w(changed(board, found), clock_w), model.works)
