"""Random boards, workloads and batch-size efficiencies for ``benchmarks.session``, each with its exact best point."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wattune.algorithms import open_algorithm
from wattune.devices.simulator.board_file import BOARDS, SimulatedBoard, tomllib
from wattune.devices.simulator.roofline import Segment, segments
from wattune.devices.simulator.simulated import NOISE_LIMIT, SimulatedDevice
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.records import StepWork
from wattune.workloads.models import CharacterTransformer, resnet8, resnet18, resnet20, small_cnn
from wattune.workloads.optimizers import OptimizerRule


@dataclass(frozen=True)
class Task:
    """A model with the shape of its data, its optimizer and the user's batch size, in the form that counting needs."""

    name: str
    user: int
    shape: tuple[int, ...]
    rule: OptimizerRule
    data_type: str = "fp32"
    host_s_per_sample: float = 0.0

    def model(self, seed: int) -> nn.Module:
        """The built-in model of this name."""
        torch.manual_seed(seed)
        return {
            "small-cnn": lambda: small_cnn(width=32),
            "resnet8": lambda: resnet8(),
            "resnet20": lambda: resnet20(),
            "resnet18": lambda: resnet18(stem="imagenet"),
            "transformer": lambda: CharacterTransformer(),
        }[self.name]()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross-entropy, mean over the batch."""
        return F.cross_entropy(output.flatten(0, -2), target.flatten())

    def optimizer(self, model: nn.Module, batch_size: int) -> torch.optim.Optimizer:
        """The optimizer by the task's rule."""
        return self.rule(model, batch_size)

    def example(self, batch_size: int) -> tuple[Tensor, Tensor]:
        """A batch of zeros."""
        if self.name == "transformer":
            text = torch.zeros(batch_size, *self.shape, dtype=torch.int64)
            return text, text
        return torch.zeros(batch_size, *self.shape), torch.zeros(batch_size, dtype=torch.int64)


TASKS = (
    Task("small-cnn", 64, (3, 32, 32), OptimizerRule("sgd", scaling="linear", momentum=0.9), host_s_per_sample=2e-4),
    Task("resnet8", 128, (3, 32, 32), OptimizerRule("adam"), host_s_per_sample=2e-4),
    Task("resnet20", 32, (3, 32, 32), OptimizerRule("adamw"), data_type="fp16"),
    Task("resnet18", 16, (3, 112, 112), OptimizerRule("sgd", scaling="linear", momentum=0.9), host_s_per_sample=1e-3),
    Task("transformer", 32, (64,), OptimizerRule("adamw")),
)


def rows_of(task: Task, *, keep_recipe: bool) -> tuple[BatchShape, ...]:
    """Powers of two around the user's batch size, each in up to five micro-batch sizes."""
    sizes = [task.user] if keep_recipe else [b for k in range(-3, 4) if 4 <= (b := int(task.user * 2.0**k)) <= 512]
    return tuple(BatchShape(b, b >> k) for b in sizes for k in range(5) if b >> k >= 1)


@cache
def work_of(task: Task, row: BatchShape) -> StepWork:
    """The counted work of one step."""
    return _algorithm(task, *row).work()


def _algorithm(task: Task, batch_size: int, micro_batch_size: int) -> Any:
    return open_algorithm("backprop", task, batch_size, micro_batch_size=micro_batch_size)


# ------------------------------------------------------------------------------------------------------------- boards


DRAWN_FROM = ("jetson-nano", "jetson-tx2-nx")
"""Names of the calibrated boards: boards that wattune gets later do not change the random ones."""


def random_board(seed: int) -> SimulatedBoard:
    """One of wattune's board files with a random GPU: every constant is drawn around the file's own."""
    draw = random.Random(f"board {seed}")
    name = draw.choice(DRAWN_FROM)
    data = tomllib.loads((BOARDS / f"{name}.toml").read_text(encoding="utf-8"))

    def times(section: dict[str, Any], key: str, spread: float) -> None:
        section[key] *= math.exp(spread * draw.gauss(0.0, 1.0))

    gpu, memory, host, power = data["gpu"], data["memory"], data["host"], data["power"]
    # The fuses of the chip: all voltages at once, how much they rise with the clock, and where the floor ends.
    level, slope = math.exp(0.06 * draw.gauss(0, 1)), math.exp(0.3 * draw.gauss(0, 1))
    floor = gpu["voltage_v"][0]
    gpu["voltage_v"] = [level * (floor + slope * (v - floor)) for v in gpu["voltage_v"]]
    speed = math.exp(0.25 * draw.gauss(0, 1))
    gpu["clocks_mhz"] = [round(c * speed, 2) for c in gpu["clocks_mhz"]]
    gpu["peak_gflops"] = {k: v * speed for k, v in gpu["peak_gflops"].items()}
    gpu["efficiency"] = draw.uniform(0.4, 0.95)
    gpu["half_speed_samples"] = draw.choice((0.0, 1.0, 3.0, 8.0))
    times(memory, "achieved_gbps", 0.4)
    times(memory, "optimizer_gbps", 0.3)
    memory["bandwidth_gbps"] = max(memory["bandwidth_gbps"], memory["achieved_gbps"], memory["optimizer_gbps"])
    memory["clock_share"] = draw.uniform(0.1, 1.0)
    times(host, "s_per_operation", 0.6)
    host["s_per_optimizer_operation"] = host["s_per_operation"] * draw.uniform(1.2, 1.8)
    for key, spread in (("base_w", 0.2), ("leakage_w_per_v3", 0.4), ("clock_w_per_v2ghz", 0.3)):
        times(power, key, spread)
    for key, spread in (("compute_w_per_v2ghz", 0.3), ("memory_w_per_v2ghz", 0.6), ("traffic_w_per_gbps", 0.5)):
        times(power, key, spread)
    power["leakage_per_degree"] = draw.choice((0.0, 0.006, 0.012))
    power["rise_s"] = draw.choice((0.0, 0.1, 0.2, 0.4))
    data["sensor"]["noise_w"] = draw.choice((0.015, 0.03, 0.05))
    data.pop("cpu", None)
    data["name"] = f"{name}-{seed}"
    return SimulatedBoard.model_validate(data)


# -------------------------------------------------------------------------------------------------------------- truth


def exact_step_s(board: SimulatedBoard, work: StepWork, knobs: Knobs) -> float:
    """Seconds of one step."""
    return sum(s.seconds for s in segments(work, board.chip("gpu"), knobs))


def exact_peak_w(board: SimulatedBoard, work: StepWork, knobs: Knobs) -> float:
    """Highest reading of a sensor without noise over endless steps, on a warm board."""
    chip = board.chip("gpu")
    parts = segments(work, chip, knobs)
    temperature_c = 25.0
    for _ in range(20):
        mean_w = _mean_w(parts, chip.power.leakage_per_degree, temperature_c)
        temperature_c = board.thermal.ambient_c + board.thermal.rth_c_per_w * mean_w
    powers = [(s.seconds, s.power_w(chip.power.leakage_per_degree, temperature_c)) for s in parts]
    period_s, energy_j = sum(s for s, _ in powers), sum(s * p for s, p in powers)
    window_s = board.sensor.window_s
    whole, rest_s = divmod(window_s, period_s)
    edges = [0.0]
    for seconds, _ in powers:
        edges.append(edges[-1] + seconds)
    # The mean over a sliding window is largest if one of its ends is at a change of power.
    starts = {e % period_s for e in edges} | {(e - rest_s) % period_s for e in edges}
    best_j = max(_energy_j(powers, start, rest_s, period_s) for start in starts)
    return (whole * energy_j + best_j) / window_s


def _energy_j(powers: list[tuple[float, float]], start_s: float, length_s: float, period_s: float) -> float:
    total, place = 0.0, 0.0
    for shift in (0.0, period_s):
        for seconds, power_w in powers:
            total += power_w * max(0.0, min(place + seconds, start_s + length_s) - max(place, start_s))
            place += seconds
        assert place >= shift
    return total


def _mean_w(parts: tuple[Segment, ...], per_degree: float, temperature_c: float) -> float:
    return sum(s.seconds * s.power_w(per_degree, temperature_c) for s in parts) / sum(s.seconds for s in parts)


@dataclass(frozen=True)
class World:
    """One board with one workload, its relative samples, and exact step times and peak powers of its points."""

    board: SimulatedBoard
    task: Task
    rows: tuple[BatchShape, ...]
    relative: Mapping[int, float]
    critical: float
    step_s: Mapping[OperatingPoint, float]
    peak_w: Mapping[OperatingPoint, float]

    def cost(self, point: OperatingPoint) -> float:
        """Seconds for the progress that one sample of the user's batch size makes."""
        return self.step_s[point] / point.batch_size * self.relative[point.batch_size]

    def allowance_w(self) -> float:
        """Most that the sensor's noise and rounding add to a reading."""
        return NOISE_LIMIT * self.board.sensor.noise_w + self.board.sensor.resolution_w / 2

    def best(self, limit_w: float) -> OperatingPoint | None:
        """The fastest point under ``limit_w``; None if there is none."""
        return min((p for p in self.step_s if self.peak_w[p] <= limit_w), key=self.cost, default=None)


def world(seed: int, task: Task, *, keep_recipe: bool) -> World:
    """The board of this seed with the task."""
    board, draw = random_board(seed), random.Random(f"{seed} {task.name}")
    device = SimulatedDevice(board)
    rows = tuple(r for r in rows_of(task, keep_recipe=keep_recipe))
    fitting = [r for r in rows if work_of(task, r).peak_memory_bytes <= (device.memory_bytes or math.inf)]
    points = [OperatingPoint(row, knobs) for row in fitting for knobs in device.combinations()]
    critical = min(8000.0, max(20.0, math.exp(math.log(200) + 1.3 * draw.gauss(0, 1))))
    sizes = sorted({r.batch for r in rows})
    bend, tilt = 0.04 * draw.gauss(0, 1), 0.03 * draw.gauss(0, 1)  # real curves are not the formula
    raw = {
        b: (1 + b / critical) * math.exp(tilt * math.log2(b / task.user) + bend * math.sin(math.log2(b))) for b in sizes
    }
    return World(
        board,
        task,
        rows,
        {b: raw[b] / raw[task.user] for b in sizes},
        critical,
        {p: exact_step_s(board, work_of(task, p.shape), p.knobs) for p in points},
        {p: exact_peak_w(board, work_of(task, p.shape), p.knobs) for p in points},
    )
