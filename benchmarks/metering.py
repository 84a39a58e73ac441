"""Overhead of the meter on a real loop at 10 Hz; aim under 1 %.

A torch loop runs in pairs, with and without the meter, in random order; the sensor is a file that is read like sysfs.
The CPU time of the whole process is compared, sampling thread included, since other processes disturb it less than wall
time: median of the pairs' ratios, with quartiles as its uncertainty. If the quartiles are wider than the figure, use
the second one: CPU time of the sampling thread alone, per second of the loop.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.timing import keep
from wattune.algorithms import open_algorithm
from wattune.cap import SensorLimit
from wattune.devices import Meter
from wattune.devices.base import Device, Sensor
from wattune.point import Knobs
from wattune.records import StepWork
from wattune.workloads import example_workload

PAIRS = 30
STEPS = 60


class FileDevice(Device):
    """A device on real time, without a clock, whose sensor is a file with milliwatts."""

    name, mode, kind = "file", "-", "measured"
    sensor = Sensor(rail="file")
    memory_bytes = None
    data_types = frozenset({"fp32"})
    executes_steps = True

    def __init__(self, path: Path):
        self._path = path
        self._begin = time.monotonic()

    def now_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._begin

    def power_w(self) -> float:
        """The file's milliwatts as watts."""
        return int(self._path.read_text()) / 1000

    def wait(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)

    @contextmanager
    def step(self, work: StepWork) -> Iterator[None]:
        """Do nothing around a real step."""
        yield

    def current(self) -> None:
        """Return None: there are no knobs."""
        return None

    def _apply(self, knobs: Knobs) -> None:
        raise NotImplementedError

    def _snapshot(self) -> object:
        return None

    def _restore(self, snapshot: object) -> None:
        pass


def main() -> None:
    """Measure, and store the results."""
    loop = _loop()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in_power0_input"
        path.write_text("4321\n")
        device = FileDevice(path)
        sampling_s: list[float] = []

        def metered() -> float:
            cpu_s, share = _metered(device, loop)
            sampling_s.append(share)
            return cpu_s

        loop()
        ratios = []
        shuffle = random.Random(0)
        for _ in range(PAIRS):
            if shuffle.random() < 0.5:
                with_meter, without = metered(), loop()
            else:
                without, with_meter = loop(), metered()
            ratios.append(with_meter / without)
    low, median, high = statistics.quantiles(ratios, n=4)
    keep(
        "metering",
        {
            "sampling_thread": statistics.median(sampling_s),
            "overhead": median - 1,
            "quartiles": [low - 1, high - 1],
            "pairs": PAIRS,
            "loop_s": loop(),
            "rate_hz": 10,
        },
    )


def _loop() -> Callable[[], float]:
    """Steps of a real training loop; a call takes them and returns their CPU time."""
    torch.set_num_threads(1)
    workload = example_workload()
    algorithm = open_algorithm("backprop", workload, 32)
    batch = workload.example(32)

    def loop() -> float:
        begin = time.process_time()
        for _ in algorithm.run([batch] * STEPS):
            pass
        return time.process_time() - begin

    return loop


def _metered(device: Device, loop: Callable[[], float]) -> tuple[float, float]:
    """CPU time of the loop beside a meter, and that of the meter's thread per second."""
    of_thread: list[float] = []
    with Meter(device, rate_hz=10, limit=SensorLimit(5.0), on_reading=lambda *_: of_thread.append(time.thread_time())):
        begin = time.perf_counter()
        cpu_s = loop()
        wall_s = time.perf_counter() - begin
    return cpu_s, of_thread[-1] / wall_s
