"""BoFL's recordings: training on a Jetson TX2 at every combination of its GPU, memory and CPU clocks.

Source: Guo et al., BoFL, Middleware 2022, github.com/hongpeng-guo/BoFL: a folder with `CIFAR10.json`, `ImageNet.json`
and `IMDB.json`. They state no licence, and are not part of wattune.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from wattune.errors import InputError
from wattune.point import Knobs

WORKLOADS = {"CIFAR10": ("ViT-B/16, 32x32", 32), "ImageNet": ("ResNet50", 8), "IMDB": ("LSTM", 8)}
"""File of the recording -> its workload and batch size."""

RAN_AT_MHZ = {828.75: 854.25, 1134.75: 1236.75}
"""Clocks that the board does not have -> those that it ran at instead, as equal times show."""


class Figures(NamedTuple):
    """Seconds of a step, and mean watts on the rails of CPU, memory, GPU and SoC."""

    step_s: float
    power_w: float


def points(folder: Path, file: str) -> dict[Knobs, list[Figures]]:
    """What was recorded at each setting; more than once at clocks that the board ran at instead of others.

    Raises: InputError if the file does not exist.
    """
    path = folder / f"{file}.json"
    if not path.is_file():
        raise InputError("no such recording", value=str(path), hint="give the folder with BoFL's recordings")
    found: dict[Knobs, list[Figures]] = {}
    for key, (step_s, step_j) in json.loads(path.read_text()).items():
        cpu_khz, gpu_hz, memory_hz = map(int, key.split(","))
        mhz = gpu_hz / 1e6
        knobs = Knobs(clock_mhz=RAN_AT_MHZ.get(mhz, mhz), memory_clock_mhz=memory_hz / 1e6, cpu_clock_mhz=cpu_khz / 1e3)
        found.setdefault(knobs, []).append(Figures(step_s, step_j / step_s))
    return found
