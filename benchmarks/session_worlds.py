"""Random boards, workloads and batch-size efficiencies for ``benchmarks.session``, each with its exact best point."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.asyncfgd.synthetic_models import SyntheticModel
from wattune.algorithms import open_algorithm
from wattune.devices.simulator.board_file import BOARDS, SimulatedBoard, tomllib
from wattune.devices.simulator.exact_steps import _highest_w
from wattune.devices.simulator.roofline import segments
from wattune.devices.simulator.simulated import NOISE_LIMIT, SimulatedDevice
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.records import StepWork
from wattune.workloads.models import CharacterTransformer, resnet8, resnet18, resnet20, small_cnn
from wattune.workloads.optimizers import OptimizerRule

SGD = OptimizerRule("sgd", scaling="linear", momentum=0.9)
TASKS = (
    SyntheticModel(
        lambda: small_cnn(width=32), (3, 32, 32), name="small-cnn", user=64, rule=SGD, host_s_per_sample=2e-4
    ),
    SyntheticModel(resnet8, (3, 32, 32), name="resnet8", user=128, host_s_per_sample=2e-4),
    SyntheticModel(resnet20, (3, 32, 32), name="resnet20", rule=OptimizerRule("adamw"), data_type="fp16"),
    SyntheticModel(
        lambda: resnet18(stem="imagenet"), (3, 112, 112), name="resnet18", user=16, rule=SGD, host_s_per_sample=1e-3
    ),
    SyntheticModel(CharacterTransformer, (64,), 96, text=True, name="transformer", rule=OptimizerRule("adamw")),
)


def rows_of(task: SyntheticModel, *, keep_recipe: bool) -> tuple[BatchShape, ...]:
    """Powers of two around the user's batch size, each in up to five micro-batch sizes."""
    sizes = [task.user] if keep_recipe else [b for k in range(-3, 4) if 4 <= (b := int(task.user * 2.0**k)) <= 512]
    return tuple(BatchShape(b, b >> k) for b in sizes for k in range(5) if b >> k >= 1)


@cache
def work_of(task: SyntheticModel, row: BatchShape) -> StepWork:
    """The counted work of one step."""
    return open_algorithm("backprop", task, row.batch, micro_batch_size=row.micro).work()


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
    temperature_c, step_s = 25.0, sum(part.seconds for part in parts)
    for _ in range(20):
        powers = [part.power_w(chip.power.leakage_per_degree, temperature_c) for part in parts]
        mean_w = sum(part.seconds * power_w for part, power_w in zip(parts, powers, strict=True)) / step_s
        temperature_c = board.thermal.ambient_c + board.thermal.rth_c_per_w * mean_w
    return _highest_w(parts, powers, board.sensor.window_s)


@dataclass(frozen=True)
class World:
    """One board with one workload, its relative samples, and exact step times and peak powers of its points."""

    board: SimulatedBoard
    task: SyntheticModel
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


def world(seed: int, task: SyntheticModel, *, keep_recipe: bool) -> World:
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
