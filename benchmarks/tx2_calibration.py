"""How far ``sim:jetson-tx2`` is from the recorded board.

`python -m benchmarks tx2_calibration FOLDER`. FOLDER has `bofl_tx2/CIFAR10.json`, `ImageNet.json` and
`IMDB.json` (Guo et al., BoFL, Middleware 2022: training on a TX2 at combinations of three clocks, as the sum of four
rails), `vgg19_by_gpu_clock.csv` and `fps_by_gpu_emc_clock.csv` (github thynics/jetson_dvfs: inference in TensorRT at
full load; VDD_IN is the board's whole power). Neither is part of wattune; only errors and fitted figures are stored.

First the times: figures of the board and, for the two workloads whose work cannot be counted, their work. Then the
powers, with the times of the model: power is linear in all its figures once the voltages are known, so every pair of
floor and slope of the voltage has one best set of figures, none of them negative.

``sim:jetson-tx2-nx`` is derived from it, and judged by what is published of it and by the TX2's recorded powers. It has
the TX2's chip, with the memory at 1600 MHz at most. Three constants of its file are fitted to its published times,
since no recording tells them: what a batch size fills of the GPU, and the speed of memory and host under the paper's
software. Its host's time is added instead of hidden.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares, nnls

from benchmarks.paper.calibration import SOUND_RATIOS, changed, fit, rms, value_of
from benchmarks.paper.models import work
from benchmarks.paper.published import NANO, RESNET18, TX2_NX
from benchmarks.timing import folder_of, keep
from benchmarks.tx2_recordings import (
    FILES,
    FITTED_MHZ,
    LSTM,
    RESNET50,
    TOP_CPU_MHZ,
    VGG19,
    VIT,
    Cell,
    FittedBoard,
    Recordings,
    counted,
    of_groups,
    recordings,
    spread,
)
from wattune.devices import SimulatedBoard
from wattune.devices.simulator.board_file import builtin_board
from wattune.devices.simulator.exact_steps import exact
from wattune.point import Knobs
from wattune.records import StepWork

MEMORY_MHZ = 1600.0
FITTED = ("gpu.half_speed_samples", "memory.achieved_gbps", "host.s_per_operation")
"""Places in the board file that are fitted to the published times; everything else is the TX2's or assumed."""
OF_THIS_BOARD = [ratio for ratio in SOUND_RATIOS if ratio.cell.device == TX2_NX]


def derived(tx2: SimulatedBoard, nx: SimulatedBoard) -> SimulatedBoard:
    """The TX2 NX with nothing fitted to it: the TX2's times and power with memory and CPU at the clocks of ``nx``.

    Of ``nx`` remain its memory's size and bandwidth, its sensor and its temperatures.
    """
    memory, host, power = tx2.memory, tx2.host, tx2.power
    memory_w = dict(zip(memory.clocks_mhz or (), memory.clock_w or (), strict=True))
    slower = MEMORY_MHZ / max(memory_w)
    cpu_mhz, cpu_v = (host.clocks_mhz or (0.0,))[-1], (host.voltage_v or (0.0,))[-1]
    cpu_w = host.clock_w_per_v2ghz * cpu_v**2 * cpu_mhz / 1e3
    one_clock = {"clocks_mhz": None, "voltage_v": None, "clock_w_per_v2ghz": 0.0, "busy_w_per_v2ghz": 0.0}
    return nx.model_copy(
        update={
            "gpu": tx2.gpu,
            "memory": nx.memory.model_copy(
                update={
                    "achieved_gbps": memory.achieved_gbps * slower,
                    "optimizer_gbps": memory.optimizer_gbps * slower,
                    # The GPU's requests take as long as beside the faster memory, so a smaller share of its time.
                    "clock_share": memory.clock_share * slower,
                    "clock_form": memory.clock_form,
                }
            ),
            "host": host.model_copy(update=one_clock),
            "power": power.model_copy(update={"base_w": power.base_w + memory_w[MEMORY_MHZ] + cpu_w}),
        }
    )


def tx2_nx(works: dict[str, StepWork], steps: Sequence[Cell]) -> dict[str, Any]:
    """Errors of the board with nothing fitted and as shipped, and the fitted constants by the fit and in the file.

    ``works``: the recorded workloads. ``steps``: their recorded steps, of which those at this board's clocks count.
    """
    tx2, nx, nano = (builtin_board(name) for name in ("jetson-tx2", TX2_NX, NANO))
    cells = [c for c in steps if c.knobs["memory_clock_mhz"] == MEMORY_MHZ and c.knobs["cpu_clock_mhz"] == TOP_CPU_MHZ]
    again = fit({NANO: nano, TX2_NX: nx}, {TX2_NX: FITTED}, OF_THIS_BOARD)
    return {
        "nothing fitted": _judged(derived(tx2, nx), nano, works, cells),
        "as shipped": _judged(nx, nano, works, cells),
        "constants": {
            place: {
                "file": value_of(nx, place),
                "fit": float(f"{value_of(again.boards[TX2_NX], place):.3g}"),
                "known": again.spread[TX2_NX][place],
            }
            for place in FITTED
        },
    }


def _judged(
    board: SimulatedBoard, nano: SimulatedBoard, works: dict[str, StepWork], cells: Sequence[Cell]
) -> dict[str, Any]:
    """Errors of the published time ratios, and power beside the recorded TX2."""
    boards = {NANO: nano, TX2_NX: board}
    times = {
        group: [ratio.error(boards) for ratio in OF_THIS_BOARD if ratio.between_boards == between]
        for group, between in (("within", False), ("between", True))
    }
    model = FittedBoard(board, works)
    power = {}
    for name in FILES:
        own = [replace(c, knobs=Knobs(clock_mhz=c.knobs["clock_mhz"])) for c in cells if c.workload == name]
        power[name] = {
            **spread(model.power_errors(own)),
            "low_w": round(model.step(own[0])[1], 2),
            "high_w": round(model.step(own[-1])[1], 2),
            "recorded_w": [round(own[at].power_w or math.nan, 2) for at in (0, -1)],
            "slower": round(math.exp(sum(model.time_errors(own)) / len(own)), 3),
        }
    watts = [one.power_mean_w for one in exact(board, "gpu", work(RESNET18, 128)).values()]
    return {
        "times": {
            group: {"rms": round(rms(errors), 4), "largest": round(max(errors, key=abs), 4)}
            for group, errors in times.items()
        },
        "low_w": round(watts[0], 2),
        "high_w": round(watts[-1], 2),
        "power": power,
    }


BOARD = "jetson-tx2"
NAME = "tx2_calibration"
ALLOWED = 0.10
"""Largest error of VDD_IN at full load."""
RATIO, RATIO_OFF = 3.0, 0.3
"""Power at the highest GPU clock over that at the lowest, at full load, and how far it may be off."""

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


# -------------------------------------------------------------------------------------------------------------- the fit


def work_of(name: str, quantities: Sequence[float]) -> StepWork:
    """The work of a step whose quantities are fitted."""
    first, second, third = quantities
    if name == LSTM:
        return of_groups((first, 0.0, 0.0), (0.0, second, 0.0), (0.0, 0.0, third), samples=8)
    return of_groups((first, second, 0.0), (0.0, third, 0.0), samples=1)


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


# ----------------------------------------------------------------------------------------------------------- the errors


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
    board = builtin_board(BOARD)
    recorded = recordings(folder_of(NAME, arguments, "the folder of the recordings"), board.memory.clocks_mhz or ())
    again, model = fitted(board, recorded, list(FILES)), as_shipped(recorded)
    figures = {
        "fitted_mhz": {name: sorted(mhz) for name, mhz in FITTED_MHZ.items()},
        "vdd_in": {
            "factor": round(recorded.factor, 3),
            "other_w": round(recorded.other_w, 3),
            "worst_w": round(recorded.conversion_w, 3),
        },
        "shipped": shipped(model, recorded),
        "refit": {"constants": constants(again)},
        "tx2_nx": tx2_nx(model.works, recorded.steps),
        "left_out": {name: left_out(board, recorded, name) for name in (VIT, RESNET50)},
    }
    keep(NAME, figures)
