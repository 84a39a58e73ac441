"""A small workload, and boards that differ from the built-in ones in what a test is about."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from wattune.devices import Device, Sensor, SimulatedDevice, builtin_board
from wattune.point import Knobs
from wattune.records import StepWork
from wattune.workloads import Data, Workload

BATCHES = (8, 32, 128)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def no_data() -> Data:
    raise AssertionError("profiling reads no data")


def workload(**changes: Any) -> Workload:
    return Workload(
        **{
            "name": "small",
            "model": network,
            "data": no_data,
            "input_shape": (3, 32, 32),
            "batch_sizes": BATCHES,
            "budget_samples": 128,
            **changes,
        }
    )


def board(name: str = "jetson-nano", *, seed: int = 0, memory: dict[str, float] | None = None, **sensor: float):
    """A built-in board with another sensor or memory; noise-free unless ``noise_w`` is given."""
    made = builtin_board(name)
    changes = {
        "sensor": made.sensor.model_copy(update={"noise_w": 0.0, **sensor}),
        "memory": made.memory.model_copy(update=memory or {}),
    }
    return SimulatedDevice(made.model_copy(update=changes), seed=seed)


class Computer(Device):
    """The computer that the tests run on, with a made-up sensor: it executes steps, and has no clock to set."""

    name = "computer"
    mode = "as it is"
    kind = "measured"
    sensor = Sensor(rail="made up", window_s=0.01)
    memory_bytes = None
    data_types = frozenset({"fp32"})
    executes_steps = True

    def __init__(self) -> None:
        self.steps = 0

    def now_s(self) -> float:
        return time.monotonic()

    def power_w(self) -> float:
        return 7.0

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    @contextmanager
    def step(self, work: StepWork) -> Iterator[None]:
        self.steps += 1
        yield

    def current(self) -> None:
        return None

    def _apply(self, knobs: Knobs) -> None:
        raise AssertionError("there is no clock")

    def _snapshot(self) -> object:
        return None

    def _restore(self, snapshot: object) -> None:
        pass


class Greedy(nn.Linear):
    """Takes more memory than there is for more than four samples, in the words of ``ending``; only in a process that
    was started to try it, so that a test lives on if it is called elsewhere."""

    def __init__(self, ending: str):
        super().__init__(6, 3)
        self.ending = ending

    def forward(self, x):
        if len(x) > 4 and multiprocessing.parent_process() is not None:
            if self.ending == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.ending == "asleep":
                time.sleep(60)
            if self.ending == "gone":
                os._exit(3)
            raise RuntimeError(self.ending)
        return super().forward(x)


def greedy(ending: str = "killed", **changes: Any) -> Workload:
    return workload(**{"model": partial(Greedy, ending), "input_shape": (6,), "batch_sizes": (2, 4, 8, 16), **changes})
