"""How far ``sim:jetson-agx-orin`` is from the energy that a recorded board takes at each clock.

`python -m benchmarks agx_orin FOLDER`. FOLDER has `energy_by_gpu_clock.csv` (github esainulab/slmdvfs; thesis
A. Amangeldi, Nazarbayev University, 2026): joules of an epoch of fine-tuning on an AGX Orin, of the rails VDD_GPU_SOC
and VDD_CPU_CV, without times. So only the shape over the clock is fitted: the voltages, and the ratio of the power that
switching takes to the power that the clock does not change. The switching power at the highest clock stays as assumed.

DeBERTa-v2-xlarge on QNLI is fitted, on SST-2 it is predicted. Its work is counted on encoder blocks of its width, times
12: the exact attention differs, and nearly all of the work is in the blocks' multiplications.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls
from torch import nn

from benchmarks.paper.calibration import changed, value_of
from benchmarks.timing import folder_of, keep
from benchmarks.tx2_recordings import Encoder, counted_step
from wattune.devices import SimulatedBoard
from wattune.devices.simulator.board_file import builtin_board
from wattune.devices.simulator.roofline import segments
from wattune.errors import InputError
from wattune.point import Knobs
from wattune.records import StepWork

NAME, BOARD = "agx_orin", "jetson-agx-orin"
FILE = "energy_by_gpu_clock.csv"
MODEL = "deberta-v2-xlarge"
TOKENS = {"qnli": 256, "sst2": 128}
FITTED = "qnli"
LAYERS, COUNTED = 24, 2
COUNTS = ("flops", "bytes", "kernels")
HIGHEST_V, LOWEST_V = 0.95, 0.55
"""Voltage at the highest clock and at the lowest ones: energies tell the ratio of the squares alone, and the fit to
QNLI changes by less than 0.3 % from 0.95 to 1.2 V."""
OTHER_RAILS_W = 6.0
"""Power of the rails that were not recorded, as assumed."""
SWITCHING = ("power.clock_w_per_v2ghz", "power.compute_w_per_v2ghz", "power.memory_w_per_v2ghz")
LEAKAGE, BASE = "power.leakage_w_per_v3", "power.base_w"


class Blocks(nn.Module):
    """``COUNTED`` encoder blocks of the model's width: (N, T, 1536) to scores (N, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Encoder(1536, 24) for _ in range(COUNTED)))
        self.classifier = nn.Linear(1536, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        scores: torch.Tensor = self.classifier(self.blocks(x)[:, 0])
        return scores


def counted(tokens: int) -> StepWork:
    """The work of a training step over 16 samples of this many tokens."""
    step, times = counted_step(Blocks, (tokens, 1536), 16), LAYERS // COUNTED
    phases = []
    for phase in step.phases:
        scaled = [{name: times * getattr(one, name) for name in COUNTS} for one in phase.operations]
        operations = [one.model_copy(update=counts) for one, counts in zip(phase.operations, scaled, strict=True)]
        phases.append(phase.model_copy(update={"operations": tuple(operations)}))
    return step.model_copy(update={"phases": tuple(phases)})


def recorded(folder: Path) -> dict[str, dict[float, float]]:
    """Data set -> GPU clock -> joules, where the clock was pinned. Raises: InputError if the file is missing."""
    if not (folder / FILE).exists():
        raise InputError("no such recording", value=str(folder / FILE), hint="give the folder of the recordings")
    energies: dict[str, dict[float, float]] = {}
    with (folder / FILE).open(newline="") as file:
        for row in csv.DictReader(file):
            if row["model"] == MODEL and row["governor"] == "pinned":
                energies.setdefault(row["dataset"], {})[float(row["gpu_clock_mhz"])] = float(row["energy_j"])
    return energies


def energies_j(board: SimulatedBoard, work: StepWork) -> np.ndarray[Any, Any]:
    """Joules of a step at each clock, (clocks,)."""
    chip = board.chip("gpu")
    steps = [segments(work, chip, Knobs(clock_mhz=mhz)) for mhz in board.gpu.clocks_mhz]
    return np.array([sum(part.seconds * part.power_w(0.0, 25.0) for part in step) for step in steps])


def voltages_v(clocks_mhz: Sequence[float], floor_mhz: float) -> tuple[float, ...]:
    """``LOWEST_V`` up to ``floor_mhz``, then a line to ``HIGHEST_V`` at the highest clock."""
    rise = (HIGHEST_V - LOWEST_V) / (clocks_mhz[-1] - floor_mhz)
    return tuple(round(LOWEST_V + rise * max(0.0, mhz - floor_mhz), 3) for mhz in clocks_mhz)


def fitted(board: SimulatedBoard, work: StepWork, joules: Mapping[float, float]) -> SimulatedBoard:
    """The board with voltages and powers fitted to the energies, by least squares of their relative errors."""
    target = np.array(list(joules.values())) / min(joules.values())
    switching = {place: value_of(board, place) for place in SWITCHING}
    nothing = changed(board, dict.fromkeys((*SWITCHING, LEAKAGE, BASE, "power.traffic_w_per_gbps"), 0.0))
    best: tuple[float, Any, SimulatedBoard] | None = None
    for floor_mhz in np.arange(board.gpu.clocks_mhz[0], 1000.0, 51.0):
        curve = voltages_v(board.gpu.clocks_mhz, float(floor_mhz))
        place = nothing.model_copy(update={"gpu": nothing.gpu.model_copy(update={"voltage_v": curve})})
        parts = [changed(place, values) for values in ({BASE: 1.0}, {LEAKAGE: 1.0}, switching)]
        columns = np.stack([energies_j(part, work) for part in parts], axis=1)
        values, rest = nnls(columns / target[:, None], np.ones(len(target)))
        if best is None or rest < best[0]:
            best = float(rest), values, place
    assert best is not None
    _, (base, leakage, share), place = best
    highest_v = board.gpu.voltage_v[-1]
    scale = (highest_v / HIGHEST_V) ** 2 / share  # the switching power at the highest clock stays
    return changed(
        place,
        {name: value * share * scale for name, value in switching.items()}
        | {LEAKAGE: leakage * scale, BASE: base * scale + OTHER_RAILS_W},
    )


def shape(board: SimulatedBoard, work: StepWork, joules: Mapping[float, float]) -> dict[str, Any]:
    """The clock of the least energy of the recorded rails, and the highest clock's over it, beside the recorded."""
    rails = changed(board, {BASE: value_of(board, BASE) - OTHER_RAILS_W})
    ours, theirs = energies_j(rails, work), np.array(list(joules.values()))
    off = np.log(ours / ours.min()) - np.log(theirs / theirs.min())
    clocks = board.gpu.clocks_mhz
    return {
        "least_mhz": clocks[int(ours.argmin())],
        "recorded_least_mhz": clocks[int(theirs.argmin())],
        "steps_apart": abs(int(ours.argmin()) - int(theirs.argmin())),
        "highest_over_least": round(float(ours[-1] / ours.min()), 3),
        "recorded_highest_over_least": round(float(theirs[-1] / theirs.min()), 3),
        "rms": round(float(np.sqrt(np.mean((off - off.mean()) ** 2))), 4),
    }


def main(arguments: list[str]) -> None:
    """Fit, compare and store. Raises: InputError without the recordings."""
    board, joules = builtin_board(BOARD), recorded(folder_of(NAME, arguments, "the folder of the recordings"))
    works = {name: counted(tokens) for name, tokens in TOKENS.items()}
    again = fitted(board, works[FITTED], joules[FITTED])
    keep(
        NAME,
        {
            "fitted": FITTED,
            "shapes": {name: shape(board, works[name], joules[name]) for name in TOKENS},
            "refit": {
                "voltage_v": list(again.gpu.voltage_v),
                **{place: round(value_of(again, place), 1) for place in (BASE, LEAKAGE, *SWITCHING)},
            },
        },
    )
