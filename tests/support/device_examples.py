"""Synthetic work, tables and a device on real time for the tests of the devices."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wattune.devices import Device, Knob, Sensor, SimulatedBoard, builtin_board
from wattune.errors import InputError, SensorError
from wattune.point import Knobs
from wattune.records import Operation, PhaseWork, ProfileCell, ProfileTable, StepWork


def make_work(
    samples: int = 8,
    *,
    gflop: float = 1.0,
    gigabytes: float = 0.1,
    kernels: int = 50,
    data_type: str = "fp32",
    memory_bytes: float = 1e8,
    host_s: float = 0.001,
    training: bool = True,
) -> StepWork:
    """A step of a forward, a backward and an optimizer phase, or an evaluation."""

    def group(kind: str, share: float) -> Operation:
        return Operation(kind=kind, flops=gflop * 1e9 * share, bytes=gigabytes * 1e9 * share, kernels=kernels)

    forward = PhaseWork(phase="forward", operations=(group("convolution", 0.25), group("normalisation", 0.05)))
    backward = PhaseWork(phase="backward", operations=(group("convolution", 0.5), group("normalisation", 0.1)))
    optimizer = PhaseWork(phase="optimizer", operations=(group("optimizer", 0.1),))
    host = PhaseWork(phase="host", host_s=host_s)
    return StepWork(
        samples=samples,
        micro_batch_size=samples,
        data_type=data_type,
        phases=(host, forward, backward, optimizer) if training else (host, forward),
        peak_memory_bytes=memory_bytes,
    )


def run_steps(device: Device, work: StepWork, count: int = 1) -> None:
    """So many steps of the same work, with nothing in between."""
    for _ in range(count):
        with device.step(work):
            pass


def quiet(board: SimulatedBoard | None = None, **changes: object) -> SimulatedBoard:
    """A board whose sensor neither rounds nor adds noise."""
    board = board or builtin_board("jetson-nano")
    sensor = board.sensor.model_copy(update={"resolution_w": 0.0, "noise_w": 0.0})
    return board.model_copy(update={"sensor": sensor, **changes})


def make_table(setting: str | None = "clock_mhz") -> ProfileTable:
    """A small profile with one kind of setting or with none; the largest batch did not fit."""
    cells = []
    for batch_size in (4, 8):
        for value in (100.0, 150.0, 200.0) if setting else (None,):
            speed = (value or 100.0) / 100
            cells.append(
                ProfileCell(
                    batch_size=batch_size,
                    **({setting: value} if setting else {}),
                    step_s=0.02 * (batch_size + 2) / speed,
                    power_mean_w=40.0 * speed + batch_size,
                    power_peak_w=44.0 * speed + batch_size,
                    steps=20,
                )
            )
    cells.append(ProfileCell(batch_size=16, **({setting: 100.0} if setting else {}), out_of_memory=True))
    return ProfileTable(device="bench-gpu", workload="made-up", cells=tuple(cells))


class FileDevice(Device):
    """A device on real time whose sensor (milliwatts) and clock (MHz) are files, as sysfs has them."""

    name, mode, kind = "files", "-", "measured"
    knobs = (Knob("clock_mhz", (100.0, 200.0)),)
    sensor = Sensor(rail="power1_input")
    memory_bytes = None
    data_types = frozenset({"fp32"})
    executes_steps = True

    def __init__(self, folder: Path):
        self.power_file = folder / "power1_input"
        self.clock_file = folder / "cur_freq"
        self.power_file.write_text("4321\n")
        self.clock_file.write_text("200\n")
        self._begin_s = time.monotonic()

    def now_s(self) -> float:
        return time.monotonic() - self._begin_s

    def power_w(self) -> float:
        try:
            return int(self.power_file.read_text()) / 1000
        except (OSError, ValueError) as error:
            raise SensorError(f"{self.power_file.name} cannot be read") from error

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    @contextmanager
    def step(self, work: StepWork) -> Iterator[None]:
        if work.data_type not in self.data_types:
            raise InputError("files cannot compute in", value=work.data_type, allowed="fp32")
        yield

    def current(self) -> Knobs:
        return Knobs(clock_mhz=float(self.clock_file.read_text()))

    def _apply(self, knobs: Knobs) -> None:
        # In one piece, as a kernel's file changes: another thread may be reading.
        beside = self.clock_file.with_suffix(".new")
        beside.write_text(f"{knobs['clock_mhz']:g}\n")
        beside.replace(self.clock_file)

    def _snapshot(self) -> object:
        return self.clock_file.read_text()

    def _restore(self, snapshot: object) -> None:
        self.clock_file.write_text(str(snapshot))
