"""How far ``sim:jetson-tx2`` is from the recorded board.

`python -m benchmarks tx2_calibration FOLDER`. FOLDER has `bofl_tx2/CIFAR10.json`, `ImageNet.json` and
`IMDB.json` (Guo et al., BoFL, Middleware 2022: training on a TX2 at combinations of three clocks, as the sum of four
rails), `vgg19_by_gpu_clock.csv` and `fps_by_gpu_emc_clock.csv` (github thynics/jetson_dvfs: inference in TensorRT at
full load; VDD_IN is the board's whole power). Neither
is part of wattune; only errors and fitted figures are stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.paper.calibration_model import value_of
from benchmarks.timing import keep
from benchmarks.tx2_fit import (
    POWER_PLACES,
    TIME_PLACES,
    FittedBoard,
    fit_powers,
    fit_times,
    fitted_works,
    spread,
)
from benchmarks.tx2_nx import figures as tx2_nx_figures
from benchmarks.tx2_recordings import FILES, FITTED_MHZ, LSTM, RESNET50, VGG19, VIT, Cell, Recordings, recordings
from wattune.devices import SimulatedBoard
from wattune.devices.simulator.board_file import builtin_board
from wattune.errors import InputError

BOARD = "jetson-tx2"
NAME = "tx2_calibration"
ALLOWED = 0.10
"""Largest error of VDD_IN at full load."""
RATIO, RATIO_OFF = 3.0, 0.3
"""Power at the highest GPU clock over that at the lowest, at full load, and how far it may be off."""


def errors(model: FittedBoard, cells: Sequence[Cell]) -> dict[str, dict[str, float]]:
    """Errors of time and power."""
    return {
        "time": spread([math.expm1(e) for e in model.time_errors(cells)]),
        "power": spread(model.power_errors(cells)),
    }


def full_load(model: FittedBoard, cells: Sequence[Cell]) -> dict[str, Any]:
    """VDD_IN at every GPU clock at full load, and its ratio from top to bottom."""
    off = model.power_errors(cells)
    watts = [model.step(cell)[1] for cell in cells]
    recorded = [float(cell.power_w or math.nan) for cell in cells]
    ratio = watts[-1] / watts[0]
    return {
        "clocks": len(cells),
        "low_w": round(watts[0], 2),
        "high_w": round(watts[-1], 2),
        "worst": round(max(map(abs, off)), 4),
        "within": sum(abs(e) <= ALLOWED for e in off),
        "ratio": round(ratio, 3),
        "recorded_ratio": round(recorded[-1] / recorded[0], 3),
        "ratio_within": abs(ratio - RATIO) <= RATIO_OFF,
        "times": spread([math.expm1(e) for e in model.time_errors(cells)]),
    }


def constants(model: FittedBoard) -> dict[str, Any]:
    """The fitted figures."""
    board = model.board
    figures = {place: float(f"{value_of(board, place):.3g}") for place in (*TIME_PLACES, *POWER_PLACES)}
    return {
        **figures,
        "gpu.voltage_v": [round(v, 3) for v in board.gpu.voltage_v],
        "memory.clock_w": [round(w, 3) for w in board.memory.clock_w or ()],
    }


def fitted(board: SimulatedBoard, recorded: Recordings, names: Sequence[str]) -> FittedBoard:
    """A fit from the recordings, with the training steps of these workloads alone."""
    cells = [cell for cell in recorded.steps if cell.is_fitted and cell.workload in names]
    timed = fit_times(board, cells)
    vgg19 = fitted_works(timed.board, recorded.inference, [VGG19])[VGG19]
    model = FittedBoard(timed.board, {**timed.works, VGG19: vgg19})
    return fit_powers(model, [*cells, *recorded.full_load])


def left_out(board: SimulatedBoard, recorded: Recordings, name: str) -> dict[str, Any]:
    """Errors for a workload, with its work counted and the board fitted to the others alone."""
    others = [one for one in FILES if one != name]
    model = fitted(board, recorded, others)
    works = {**model.works, **fitted_works(model.board, [], [])}
    cells = [cell for cell in recorded.steps if cell.workload == name]
    return {**errors(FittedBoard(model.board, works), cells), "constants": constants(model)}


def as_shipped(recorded: Recordings) -> FittedBoard:
    """The board file, with the work that cannot be counted fitted to the fitted cells."""
    board = builtin_board(BOARD)
    own = [cell for cell in (*recorded.steps, *recorded.inference) if cell.is_fitted]
    return FittedBoard(board, fitted_works(board, own, [LSTM, VGG19]))


def shipped(model: FittedBoard, recorded: Recordings) -> dict[str, Any]:
    """Errors of the board file."""
    steps = {
        name: {
            kind: errors(model, [c for c in recorded.steps if c.workload == name and c.is_fitted == is_fitted])
            for kind, is_fitted in (("fitted", True), ("predicted", False))
        }
        for name in FILES
    }
    groups = {
        name: [(o.flops, o.bytes, o.kernels) for phase in model.works[name].phases for o in phase.operations]
        for name in (LSTM, VGG19)
    }
    return {
        "steps": steps,
        "full_load": full_load(model, recorded.full_load),
        "constants": constants(model),
        "works": {name: [[float(f"{v:.3g}") for v in group] for group in rows] for name, rows in groups.items()},
    }


def main(arguments: list[str]) -> None:
    """Fit, compare and store. Raises: InputError without the recordings."""
    if len(arguments) != 1:
        raise InputError(NAME, value=" ".join(arguments) or "no folder", allowed="FOLDER")
    board = builtin_board(BOARD)
    recorded = recordings(Path(arguments[0]), board.memory.clocks_mhz or ())
    again, model = fitted(board, recorded, list(FILES)), as_shipped(recorded)
    figures = {
        "fitted_mhz": {name: sorted(mhz) for name, mhz in FITTED_MHZ.items()},
        "vdd_in": {
            "factor": round(recorded.factor, 3),
            "other_w": round(recorded.other_w, 3),
            "worst_w": round(recorded.conversion_w, 3),
        },
        "shipped": shipped(model, recorded),
        "refit": {"constants": constants(again), "full_load": full_load(again, recorded.full_load)},
        "tx2_nx": tx2_nx_figures(model.works, recorded.steps),
        "left_out": {name: left_out(board, recorded, name) for name in (VIT, RESNET50)},
    }
    keep(NAME, figures)
