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
from benchmarks.paper.published import CELLS, NANO, RESNET18, TX2_NX
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
    fits = {
        "i": _described(first),
        "ii": _described(second),
        "iii": _described(third),
    }
    return {
        "source": "arXiv 2502.18323, Tables 2 to 4; clocks and batch sizes are inferred",
        "level_s": {"published": LEVEL_S, **{way: level_s(by_board[NANO]) for way, by_board in boards.items()}},
        "fits": fits,
        "errors": {way: _errors(boards[way], used[way]) for way in WAYS},
        "allowed": ALLOWED,
        "met": {way: _met(boards[way]) for way in ("iii", "as shipped")},
        "cells": [_row(ratio, boards, used) for ratio in RATIOS],
        "doubtful": {cell.name: cell.doubt for cell in CELLS if cell.doubt},
        "constants_as_shipped": {name: {place: value_of(b, place) for place in FREE} for name, b in files.items()},
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


def _met(boards: dict[str, SimulatedBoard]) -> dict[str, Any]:
    """Board -> the largest error of a time ratio within it, the allowed one, and if it is met."""
    met = {}
    for name, allowed in ALLOWED.items():
        errors = [r.error(boards) for r in SOUND_RATIOS if r.cell.device == name and not r.between_boards]
        largest = max(errors, key=abs)
        met[name] = {"largest": largest, "allowed": allowed, "met": abs(largest) <= allowed}
    return met


def _row(ratio: Ratio, boards: dict[str, dict[str, SimulatedBoard]], used: dict[str, set[Ratio]]) -> dict[str, Any]:
    available = [way for way in WAYS if {ratio.cell.device, ratio.anchor.device} <= set(boards[way])]
    return {
        **dataclasses.asdict(ratio.cell),
        "clock_mhz": ratio.cell.clock_mhz,
        "against": f"{ratio.anchor.device}, no limit",
        "predicted_s": {way: ratio.predicted_s(boards[way]) for way in available},
        "error": {way: ratio.error(boards[way]) for way in available},
        "fitted": [way for way in WAYS if ratio in used[way]],
    }


# ---------------------------------------------------------------------------------------------------------- as a table


def markdown(data: dict[str, Any]) -> str:
    """The fits as a table, with what they say of the clocks."""
    lines = [
        "| fit | constants | data points (cells) | " + " | ".join(GROUP_TITLES[group] for group in GROUPS) + " |",
        "|---|---|---|" + "---|" * len(GROUPS),
    ]
    for way in WAYS:
        fitted = data["fits"].get(way)
        begin = (
            f"| {way} | {fitted['number_of_constants']} | {fitted['data_points']} ({fitted['cells']}) |"
            if fitted
            else f"| {way} | those of the files | |"
        )
        shown = []
        for group in GROUPS:
            one = data["errors"][way].get(group)
            mark = "*" if one and fitted and not one["fitted"] else ""
            shown.append("" if one is None else f"{mark}{_percent(one['rms'])}, {_signed(one['largest'])}{mark}")
        lines.append(f"{begin} {' | '.join(shown)} |")
    level = data["level_s"]
    lines += [
        "",
        "RMS error, largest error; *in italics* predicted, not fitted. The absolute level rests on one published time, "
        f"{LEVEL_S:g} s for a step of ResNet18 at 224x224 with batch size 8; it becomes "
        + ", ".join(f"{level[way]:.2f} s in {way}" for way in WAYS)
        + ".",
    ]
    return "\n".join(lines) + "\n"


GROUP_TITLES = {
    "jetson-nano resnet18": "Nano, ResNet18",
    "jetson-nano mobilenet-v2": "Nano, MobileNetV2",
    "jetson-nano character-transformer": "Nano, transformer",
    TX2_NX: "TX2 NX, ResNet18",
    "between": "TX2 NX against Nano",
}


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}%"


def main(arguments: Sequence[str] = ()) -> None:
    """Measure, and store the results. There are no options."""
    if arguments:
        sys.exit(f"calibration takes no arguments, not {' '.join(arguments)}")
    keep(NAME, measure())
