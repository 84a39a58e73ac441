"""Learn to throw a ball at a mark, from a simulator that has no gradient. See README.md."""

from __future__ import annotations

import argparse
import itertools
import math

import numpy as np
import torch
from torch import Tensor, nn

import wattune
from wattune.algorithms import open_algorithm

GRAVITY, DRAG, STEP_S = 9.81, 0.02, 0.02


def landing_m(speed: np.ndarray, angle: np.ndarray, wind: np.ndarray) -> np.ndarray:
    """Where balls land, in metres: flights with drag in a wind, in steps of time."""
    x, y = np.zeros_like(speed), np.full_like(speed, 1.5)
    vx, vy = speed * np.cos(angle), speed * np.sin(angle)
    flies = np.ones_like(speed, bool)
    while flies.any():
        along = vx - wind
        drag = DRAG * np.hypot(along, vy)
        vx, vy = np.where(flies, vx - STEP_S * drag * along, vx), vy - STEP_S * (GRAVITY + drag * vy)
        x = np.where(flies, x + STEP_S * vx, x)
        y = y + STEP_S * vy
        flies &= y > 0
    return x


def miss(output: Tensor, target: Tensor) -> float:
    """Mean distance between mark and ball, in metres. It leaves PyTorch: the result is a number."""
    speed, angle = output.double().numpy().T
    mark, wind = target.double().numpy().T
    ball = landing_m(25 / (1 + np.exp(-speed)), math.pi / 2 / (1 + np.exp(-angle)), wind)
    return float(np.abs(ball - mark).mean())


def model() -> nn.Module:
    """Mark and wind in, speed and angle out."""
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))


def throws(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Marks of 5 to 25 m in winds of up to 5 m/s: scaled for the model, and as they are for the loss."""
    random = np.random.default_rng(seed)
    tasks = np.stack([random.uniform(5, 25, count), random.uniform(-5, 5, count)], 1).astype(np.float32)
    return (tasks - [15, 0]).astype(np.float32) / 5, tasks


def workload() -> wattune.Workload:
    """The task, as for any algorithm."""
    return wattune.Workload(
        "throw",
        model=model,
        data=wattune.Data(throws(2048, seed=0), throws(512, seed=1)),
        loss=miss,
        metric="loss",
        optimizer=wattune.OptimizerRule("adam", learning_rate=1e-2, reference_batch_size=32),
        batch_sizes=(32,),
        budget_samples=32 * 300,
        task="regression",
    )


def count(text: str) -> int:
    """Parse a whole number that is 1 or more."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value}; allowed: 1 or more")
    return value


def main() -> None:
    """Train, and print how far balls miss."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=count, default=300)
    options.add_argument("--directions", type=count, default=8)
    chosen = options.parse_args()
    task = workload()
    spec = f"forward-gradient:perturb=differences,directions={chosen.directions}"
    algorithm = open_algorithm(spec, task, 32)
    x, y = (torch.as_tensor(part) for part in throws(512, seed=1))

    def report(step: int) -> None:
        with torch.no_grad():
            print(f"step {step}: the balls miss by {miss(algorithm.module(x), y):.2f} m on average")

    report(0)
    batches = itertools.islice(task.batches(32, seed=0), chosen.steps)
    for number, _ in enumerate(algorithm.run(batches), start=1):
        if number % 50 == 0 or number == chosen.steps:
            report(number)


if __name__ == "__main__":
    main()
