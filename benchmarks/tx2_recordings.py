"""The recorded Jetson TX2: the work of its workloads, and what was recorded of them.

The work of ViT-B/16 and ResNet50 is counted by wattune from models like the recorded ones. The LSTM's vocabulary and
sequence length are not stated, nor what TensorRT made of VGG19: their work is a few fitted quantities.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import nn

from benchmarks.bofl import points
from benchmarks.paper.models import no_data
from wattune.algorithms import open_algorithm
from wattune.devices import SimulatedBoard
from wattune.devices.simulator.roofline import segments
from wattune.errors import InputError
from wattune.point import Knobs
from wattune.records import Operation, PhaseWork, StepWork
from wattune.workloads import Model, OptimizerRule, Workload

TOP_MEMORY_MHZ, TOP_CPU_MHZ = 1866.0, 2035.2
VIT, RESNET50, LSTM, VGG19 = "ViT-B/16", "ResNet50", "LSTM", "VGG19"
FILES = {VIT: "CIFAR10", RESNET50: "ImageNet", LSTM: "IMDB"}


class Bottleneck(nn.Module):
    """Block of ResNet50 (He et al., CVPR 2016): images (N, C, H, W) to (N, 4 ``width``, H / ``stride``, ...)."""

    def __init__(self, inputs: int, width: int, stride: int):
        super().__init__()
        sizes = ((inputs, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1))
        layers: list[nn.Module] = []
        for i, o, kernel, step in sizes:
            layers += [nn.Conv2d(i, o, kernel, step, kernel // 2, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != 4 * width:
            projection = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block."""
        return torch.relu(self.layers(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """ResNet50 for 200 classes: images (N, 3, 224, 224) to scores (N, 200)."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
        layers.append(nn.MaxPool2d(3, 2, 1))
        inputs = 64
        for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for block in range(blocks):
                layers.append(Bottleneck(inputs, width, stride if block == 0 else 1))
                inputs = 4 * width
        self.layers = nn.Sequential(*layers)
        self.classifier = nn.Linear(inputs, 200)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        scores: torch.Tensor = self.classifier(self.layers(x).mean((2, 3)))
        return scores


class Encoder(nn.Module):
    """Encoder block of ViT-B (Dosovitskiy et al., ICLR 2021): tokens (N, T, 768) to the same."""

    def __init__(self, width: int = 768, heads: int = 12):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        wide = nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width), nn.Dropout(0.1)
        self.mlp = nn.Sequential(*wide)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block."""
        samples, tokens, width = x.shape
        normalized = self.before(x)
        query, key, value = (
            projection(normalized).view(samples, tokens, self.heads, -1).transpose(1, 2)  # (N, heads, T, width / heads)
            for projection in self.projections[:3]
        )
        weights = torch.softmax(query @ key.transpose(2, 3) / (width // self.heads) ** 0.5, -1)
        mixed = (weights @ value).transpose(1, 2).reshape(samples, tokens, width)
        x = x + self.projections[3](mixed)
        result: torch.Tensor = x + self.mlp(self.between(x))
        return result


class VisionTransformer(nn.Module):
    """ViT-B/16 for 10 classes: images (N, 3, 32, 32), that is 4 patches and a class token, to scores (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, 768))
        self.position = nn.Parameter(torch.zeros(1, 5, 768))
        self.blocks = nn.Sequential(*(Encoder() for _ in range(12)), nn.LayerNorm(768))
        self.classifier = nn.Linear(768, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.token.expand(len(x), -1, -1), tokens), 1) + self.position
        scores: torch.Tensor = self.classifier(self.blocks(tokens)[:, 0])
        return scores


def counted(name: str) -> StepWork:
    """The counted work of a training step of ViT-B/16 (batch size 32) or ResNet50 (8) with Adam."""
    return counted_step(*{VIT: (VisionTransformer, (3, 32, 32), 32), RESNET50: (ResNet50, (3, 224, 224), 8)}[name])


def counted_step(model: type[nn.Module], input_shape: tuple[int, ...], batch_size: int) -> StepWork:
    """The counted work of a training step of a model with Adam."""
    workload = Workload(
        "recorded",
        model=Model(model),
        data=no_data,
        input_shape=input_shape,
        batch_sizes=(batch_size,),
        optimizer=OptimizerRule("adam", learning_rate=1e-3, reference_batch_size=batch_size),
        budget_samples=batch_size,
    )
    return open_algorithm("backprop", workload, batch_size).work()


def of_groups(*groups: tuple[float, float, float], samples: int) -> StepWork:
    """A step of groups of (FLOPs, bytes, launches); the launches need not be whole, so that they can be fitted."""
    operations = tuple(
        Operation.model_construct(kind="other", flops=flops, bytes=size, kernels=launches)
        for flops, size, launches in groups
    )
    phase = PhaseWork.model_construct(phase="forward", operations=operations, host_s=0.0)
    return StepWork.model_construct(
        samples=samples, micro_batch_size=samples, data_type="fp32", phases=(phase,), peak_memory_bytes=0.0
    )


@dataclass(frozen=True)
class Cell:
    """Recorded seconds of a step, and watts (None if they were not recorded); ``is_fitted``: part of the fit."""

    workload: str
    knobs: Knobs
    step_s: float
    power_w: float | None
    is_fitted: bool


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


@dataclass(frozen=True)
class Recordings:
    """``steps``: training at every combination of the clocks, in watts of VDD_IN; ``inference``: times of VGG19;
    ``full_load``: VGG19 at all GPU clocks, with measured VDD_IN. VDD_IN = ``factor`` x rails + ``other_w``, off by
    ``conversion_w`` at most."""

    steps: tuple[Cell, ...]
    inference: tuple[Cell, ...]
    full_load: tuple[Cell, ...]
    factor: float
    other_w: float
    conversion_w: float


FITTED_MHZ = {"clock_mhz": {114.75, 420.75, 726.75, 1032.75, 1300.5}, "cpu_clock_mhz": {345.6, 1113.6, 2035.2}}
"""Clocks of the training steps that are fitted, at every clock of the memory, since each has a power of its own. A cell
with any other clock of GPU or CPU is predicted."""


def recordings(folder: Path, memory_clocks_mhz: tuple[float, ...]) -> Recordings:
    """Read the recordings. Raises: InputError if a file is missing."""
    for name in ("vgg19_by_gpu_clock.csv", "fps_by_gpu_emc_clock.csv", "bofl_tx2"):
        if not (folder / name).exists():
            raise InputError("no such recording", value=str(folder / name), hint="give the folder of the recordings")
    with (folder / "vgg19_by_gpu_clock.csv").open(newline="") as file:
        loads = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    rails = [sum(row[f"VDD_SYS_{rail}_mean_mw"] for rail in ("GPU", "SOC", "CPU", "DDR")) / 1e3 for row in loads]
    inputs = [row["VDD_IN_mean_mw"] / 1e3 for row in loads]
    factor, other_w = (float(value) for value in np.polyfit(rails, inputs, 1))

    def inference(hertz: str, memory_mhz: float, fps: str, power_w: float | None) -> Cell:
        knobs = Knobs(clock_mhz=float(hertz) / 1e6, memory_clock_mhz=memory_mhz, cpu_clock_mhz=TOP_CPU_MHZ)
        return Cell(VGG19, knobs, 1 / float(fps), power_w, True)

    with (folder / "fps_by_gpu_emc_clock.csv").open(newline="") as file:
        rows = [(row, float(row["emc_hz"]) / 1e6) for row in csv.DictReader(file) if row["model"] == "vgg19"]
    steps = [
        Cell(
            name,
            knobs,
            fmean(step_s for step_s, _ in figures),
            factor * fmean(power_w for _, power_w in figures) + other_w,
            all(knobs[k] in mhz for k, mhz in FITTED_MHZ.items()),
        )
        for name, recording in FILES.items()
        for knobs, figures in points(folder / "bofl_tx2", recording).items()
    ]
    return Recordings(
        steps=tuple(steps),
        inference=tuple(
            inference(row["gpu_hz"], mhz, row["fps"], None) for row, mhz in rows if mhz in memory_clocks_mhz
        ),
        full_load=tuple(
            inference(str(row["gpu_hz"]), TOP_MEMORY_MHZ, str(row["fps"]), power_w)
            for row, power_w in zip(loads, inputs, strict=True)
        ),
        factor=factor,
        other_w=other_w,
        conversion_w=max(abs(factor * r + other_w - i) for r, i in zip(rails, inputs, strict=True)),
    )
