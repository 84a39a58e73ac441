"""Accuracy of the simulated Jetson Nano and TX2 NX against the published times, fitted and predicted ones.

Three fits to Tables 2 to 4 of arXiv 2502.18323, and the board files as shipped:

* (i) the Nano to its ResNet18 alone: MobileNetV2 and the transformer are predicted
* (ii) the Nano to all of its times: the TX2 NX is predicted from its data sheet, see ``from_data_sheet``
* (iii) both boards to everything: the remaining error shows how good the form of the model is

The model is wattune's own: the work of a step is counted by ``wattune.algorithms.counting.step_counting``, and its time
on a board comes from ``wattune.devices.simulator.roofline``. Only figures of the board file are fitted.

The time of a run is that of a step times a number of steps that no copy of the paper states. It cancels between two
cells of the same model, data set and batch size, so only such ratios are compared: within a board with the cell without
limit, and between the boards for the cells without limit. The number of steps does not depend on the board.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks.paper.models import work
from benchmarks.paper.published import CELLS, NANO, RESNET18, TX2_NX, Cell
from benchmarks.timing import keep
from wattune.devices import SimulatedBoard, builtin_board
from wattune.devices.simulator.roofline import segments
from wattune.point import Knobs

# ------------------------------------------------------------------------------------------------------------ the step


def step_s(board: SimulatedBoard, name: str, batch_size: int, clock_mhz: float, pixels: int = 32) -> float:
    """Seconds of a step on the board's GPU."""
    parts = segments(work(name, batch_size, pixels), board.chip("gpu"), Knobs(clock_mhz=clock_mhz))
    return math.fsum(part.seconds for part in parts)


# ---------------------------------------------------------------------------------------------------------- the ratios


@dataclass(frozen=True)
class Ratio:
    """The time of a cell relative to another one with the same number of steps."""

    cell: Cell
    anchor: Cell

    @property
    def point(self) -> tuple[str, str, int, str]:
        """Identity of the step: the same for all data sets."""
        return self.cell.device, self.cell.model, self.cell.batch_size, self.cell.rung

    @property
    def between_boards(self) -> bool:
        """True if the two cells are of different boards."""
        return self.cell.device != self.anchor.device

    def predicted_s(self, boards: dict[str, SimulatedBoard]) -> float:
        """The anchor's printed time times the ratio of the steps."""
        step, anchor = (step_s(boards[c.device], c.model, c.batch_size, c.clock_mhz) for c in (self.cell, self.anchor))
        return self.anchor.mean_s * step / anchor

    def error(self, boards: dict[str, SimulatedBoard]) -> float:
        """Predicted over published time, less one."""
        return self.predicted_s(boards) / self.cell.mean_s - 1


def _ratios(cells: Iterable[Cell]) -> tuple[Ratio, ...]:
    """Every cell that can be compared, without copies: the methods often print the same run's time twice."""
    ratios: dict[Any, Ratio] = {}
    first: dict[Any, Cell] = {}
    for cell in cells:
        if cell.rung == "highest" and not cell.doubt:
            first.setdefault((cell.device, cell.model, cell.dataset, cell.batch_size), cell)
    for cell in cells:
        key = cell.model, cell.dataset, cell.batch_size
        anchor = first.get(((NANO if cell.rung == "highest" else cell.device), *key))
        if anchor is not None and (cell.device, cell.rung) != (anchor.device, anchor.rung):
            ratios.setdefault((cell.device, *key, cell.rung), Ratio(cell, anchor))
    return tuple(ratios.values())


RATIOS: tuple[Ratio, ...] = _ratios(CELLS)
"""Ratios of every cell that has an anchor, doubtful ones included."""
SOUND_RATIOS = tuple(ratio for ratio in RATIOS if not ratio.cell.doubt)


def rms(errors: Sequence[float]) -> float:
    """Root of the mean square."""
    return math.sqrt(sum(e * e for e in errors) / len(errors))


# ------------------------------------------------------------------------------------------------------------- the fit

FREE: dict[str, tuple[float, float]] = {
    "memory.achieved_gbps": (1.0, 25.0),
    "memory.optimizer_gbps": (1.0, 25.0),
    "memory.clock_share": (0.0, 1.0),
    "host.s_per_operation": (10e-6, 400e-6),
    "gpu.half_speed_samples": (0.0, 16.0),
    "gpu.efficiency": (0.3, 0.95),
}
"""Constants that may be fitted, by their place in a board file, and their bounds. ``s_per_optimizer_operation`` keeps
its ratio to ``s_per_operation``. The Nano's ``efficiency`` is fixed: ratios leave one level undetermined."""

LINEAR = ("memory.clock_share", "gpu.half_speed_samples", "gpu.efficiency")


RANDOM_STARTS = 6

LEVEL_S = 0.77
"""Published seconds of a step of ResNet18 at 224x224 pixels, batch size 8, on a Nano at 921.6 MHz. Source:
dusty-nv/jetson-inference, docs/pytorch-cat-dog.md. Ratios leave the level of all times open; this holds it."""
LEVEL_WEIGHT = 0.2
"""Weight of that level relative to a ratio: another model, another data loader, a figure with two digits."""


def level_s(nano: SimulatedBoard) -> float:
    """Seconds of that step on the board."""
    return step_s(nano, RESNET18, 8, 921.6, pixels=224)


def changed(board: SimulatedBoard, values: dict[str, float]) -> SimulatedBoard:
    """A copy of the board with these values."""
    sections: dict[str, dict[str, float]] = {}
    for place, value in values.items():
        section, key = place.split(".")
        sections.setdefault(section, {})[key] = value
        if place == "host.s_per_operation":
            ratio = board.host.s_per_optimizer_operation / board.host.s_per_operation
            sections[section]["s_per_optimizer_operation"] = value * ratio
    return board.model_copy(
        update={name: getattr(board, name).model_copy(update=update) for name, update in sections.items()}
    )


def value_of(board: SimulatedBoard, place: str) -> float:
    """The figure at a place such as "memory.clock_share"."""
    section, key = place.split(".")
    value: float = getattr(getattr(board, section), key)
    return value


@dataclass(frozen=True)
class Fit:
    """Boards with fitted constants. ``spread``: uncertainty of each constant by device, see ``fit``."""

    boards: dict[str, SimulatedBoard]
    constants: dict[str, tuple[str, ...]]
    data_points: int
    cells: int
    rms: float
    spread: dict[str, dict[str, str]]

    @property
    def number_of_constants(self) -> int:
        """Number of fitted constants."""
        return sum(len(places) for places in self.constants.values())


def fit(boards: dict[str, SimulatedBoard], constants: dict[str, tuple[str, ...]], ratios: Sequence[Ratio]) -> Fit:
    """Fit the constants to the ratios and the level by least squares, from the boards' own values and random starts.

    The spread of a constant is two standard errors of the linearised fit; data sets that repeat a ratio count once.
    """
    names = [(device, place) for device, places in constants.items() for place in places]

    def unpacked(x: Any) -> dict[str, SimulatedBoard]:
        values: dict[str, dict[str, float]] = {}
        for (device, place), share in zip(names, x, strict=True):
            values.setdefault(device, {})[place] = _between(place, float(share))
        return {device: changed(board, values.get(device, {})) for device, board in boards.items()}

    def residuals(x: Any) -> Any:
        trial = unpacked(x)
        times: dict[Any, float] = {}

        def seconds(cell: Cell) -> float:
            key = cell.device, cell.model, cell.batch_size, cell.rung
            if key not in times:
                times[key] = step_s(trial[cell.device], cell.model, cell.batch_size, cell.clock_mhz)
            return times[key]

        errors = [math.log(seconds(r.cell) / seconds(r.anchor) * r.anchor.mean_s / r.cell.mean_s) for r in ratios]
        return np.array([*errors, LEVEL_WEIGHT * math.log(level_s(trial[NANO]) / LEVEL_S)])

    begins = [np.array([_share(place, value_of(boards[device], place)) for device, place in names])]
    # The slower of arithmetic and memory determines the time, so the errors have kinks in which the search may end.
    begins += list(np.random.default_rng(0).uniform(0.05, 0.95, (RANDOM_STARTS, len(names))))
    solution = min(
        (least_squares(residuals, np.clip(b, 0.01, 0.99), bounds=(0, 1), diff_step=1e-4) for b in begins),
        key=lambda result: float(result.cost),
    )
    best = unpacked(solution.x)
    points = len({ratio.point for ratio in ratios})
    spread = _spread(names, solution, points, len(ratios))
    return Fit(best, constants, points + 1, len(ratios), rms([r.error(best) for r in ratios]), spread)


def _between(place: str, share: float) -> float:
    """Map 0 to 1 to a value within the bounds: linearly, or for rates and times in the logarithm."""
    low, high = FREE[place]
    return low + share * (high - low) if place in LINEAR else low * (high / low) ** share


def _share(place: str, value: float) -> float:
    low, high = FREE[place]
    return (value - low) / (high - low) if place in LINEAR else math.log(value / low) / math.log(high / low)


def _spread(names: list[tuple[str, str]], solution: Any, points: int, rows: int) -> dict[str, dict[str, str]]:
    free = [i for i, share in enumerate(solution.x) if 0.005 < share < 0.995]
    jacobian = solution.jac[:, free]
    # Rows that repeat a ratio add no information: only distinct ones count.
    freedom = max(1, points + 1 - len(free))
    variance = 2 * solution.cost / rows * points / freedom
    covariance = np.linalg.pinv(jacobian.T @ jacobian * points / rows) * variance
    variances = dict(zip(free, np.diag(covariance), strict=True))
    texts: dict[str, dict[str, str]] = {}
    for index, (device, place) in enumerate(names):
        if index not in variances:
            text = "at its bound"
        elif variances[index] <= 0:  # of a constant on which no error depends here, or but for rounding
            text = "undetermined"
        else:
            error = math.sqrt(variances[index])
            ends = (max(0.0, min(1.0, solution.x[index] + sign * 2 * error)) for sign in (-1, 1))
            low, high = (_between(place, float(end)) for end in ends)
            text = f"{low:.3g} to {high:.3g}"
        texts.setdefault(device, {})[place] = text
    return texts


NAME = "paper_calibration"
ALLOWED = {NANO: 0.05, TX2_NX: 0.08}
"""Board -> largest allowed error of a time ratio within that board."""

NANO_CONSTANTS = tuple(place for place in FREE if place != "gpu.efficiency")
ALL_CONSTANTS = {NANO: NANO_CONSTANTS, TX2_NX: tuple(FREE)}
ON_NANO = tuple(ratio for ratio in SOUND_RATIOS if ratio.cell.device == NANO)
WAYS = ("i", "ii", "iii", "as shipped")


def from_data_sheet(other: SimulatedBoard, fitted: SimulatedBoard) -> SimulatedBoard:
    """Another board with the constants of a fitted one, scaled by their data sheets.

    Peak rate, clocks and bandwidth are its own. Carried over: the achieved shares of peak rate and bandwidth, the share
    of the memory's time that follows the clock, with the form in which it does, and the host's times per operation
    (both boards have Cortex-A57 cores).
    """
    wider = other.memory.bandwidth_gbps / fitted.memory.bandwidth_gbps
    scale = {"memory.achieved_gbps": wider, "memory.optimizer_gbps": wider}
    memory = other.memory.model_copy(update={"clock_form": fitted.memory.clock_form})
    other = other.model_copy(update={"memory": memory})
    return changed(other, {place: value_of(fitted, place) * scale.get(place, 1.0) for place in FREE})


def shipped() -> dict[str, SimulatedBoard]:
    """The two boards as in their files."""
    return {name: builtin_board(name) for name in (NANO, TX2_NX)}


def measure() -> dict[str, Any]:
    """All figures, in the form of the results file."""
    files = shipped()
    only_resnet = [ratio for ratio in ON_NANO if ratio.cell.model == RESNET18]
    first = fit(files, {NANO: NANO_CONSTANTS}, only_resnet)
    second = fit(files, {NANO: NANO_CONSTANTS}, ON_NANO)
    third = fit(files, ALL_CONSTANTS, SOUND_RATIOS)
    boards = {
        "i": {NANO: first.boards[NANO]},
        "ii": {NANO: second.boards[NANO], TX2_NX: from_data_sheet(files[TX2_NX], second.boards[NANO])},
        "iii": third.boards,
        "as shipped": files,
    }
    used = {"i": set(only_resnet), "ii": set(ON_NANO), "iii": set(SOUND_RATIOS), "as shipped": set[Ratio]()}
    return {
        "source": "arXiv 2502.18323, Tables 2 to 4; clocks and batch sizes are inferred",
        "level_s": {"published": LEVEL_S, **{way: level_s(by_board[NANO]) for way, by_board in boards.items()}},
        "fits": {way: _described(one) for way, one in {"i": first, "ii": second, "iii": third}.items()},
        "errors": {way: _errors(boards[way], used[way]) for way in WAYS},
        "cells": [_row(ratio, boards) for ratio in RATIOS],
    }


def _described(fitted: Fit) -> dict[str, Any]:
    return {
        "number_of_constants": fitted.number_of_constants,
        "data_points": fitted.data_points,
        "cells": fitted.cells,
        "rms": fitted.rms,
        "constants": {
            device: {
                place: {"value": value_of(fitted.boards[device], place), "known": fitted.spread[device][place]}
                for place in places
            }
            for device, places in fitted.constants.items()
        },
    }


GROUPS = ("jetson-nano resnet18", "jetson-nano mobilenet-v2", "jetson-nano character-transformer", TX2_NX, "between")


def _group(ratio: Ratio) -> str:
    if ratio.between_boards:
        return "between"
    return f"{NANO} {ratio.cell.model}" if ratio.cell.device == NANO else TX2_NX


def _errors(boards: dict[str, SimulatedBoard], used: set[Ratio]) -> dict[str, Any]:
    """Group -> errors of its predictions, and if it was part of the fit."""
    by_group = {}
    for group in GROUPS:
        inside = [r for r in SOUND_RATIOS if _group(r) == group and r.cell.device in boards]
        if inside:
            errors = [ratio.error(boards) for ratio in inside]
            by_group[group] = {
                "rms": rms(errors),
                "largest": max(errors, key=abs),
                "fitted": inside[0] in used,
                "cells": len(inside),
            }
    return by_group


def _row(ratio: Ratio, boards: dict[str, dict[str, SimulatedBoard]]) -> dict[str, Any]:
    available = [way for way in WAYS if {ratio.cell.device, ratio.anchor.device} <= set(boards[way])]
    predicted_s = {way: ratio.predicted_s(boards[way]) for way in available}
    return {**dataclasses.asdict(ratio.cell), "clock_mhz": ratio.cell.clock_mhz, "predicted_s": predicted_s}


def main(arguments: Sequence[str] = ()) -> None:
    """Measure, and store the results. There are no options."""
    if arguments:
        sys.exit(f"calibration takes no arguments, not {' '.join(arguments)}")
    keep(NAME, measure())
