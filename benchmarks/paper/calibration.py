"""Accuracy of the simulated Jetson Nano and TX2 NX against the published times, fitted and predicted ones.

Three fits to Tables 2 to 4 of arXiv 2502.18323, and the board files as shipped:

* (i) the Nano to its ResNet18 alone: MobileNetV2 and the transformer are predicted
* (ii) the Nano to all of its times: the TX2 NX is predicted from its data sheet, see ``from_data_sheet``
* (iii) both boards to everything: the remaining error shows how good the form of the model is
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.paper.calibration_model import (
    FREE,
    LEVEL_S,
    RATIOS,
    SOUND_RATIOS,
    Fit,
    Ratio,
    changed,
    fit,
    level_s,
    rms,
    value_of,
)
from benchmarks.paper.published import NANO, RESNET18, TX2_NX
from benchmarks.timing import keep
from wattune.devices import SimulatedBoard, builtin_board

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
