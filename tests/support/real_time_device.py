"""A device on real time, without torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from wattune.devices import Device, Knob, Sensor
from wattune.point import Knobs
from wattune.records import StepWork


class TwoClocks:
    """What a device with two clocks and a quick sensor is and does, on whatever time."""

    name, mode, kind = "bench", "-", "measured"
    knobs = (Knob("clock_mhz", (100.0, 200.0)),)
    sensor = Sensor(rail="made up", period_s=0.01, window_s=0.01)
    memory_bytes = None
    data_types = frozenset({"fp32"})
    executes_steps = True
    clock_mhz = 150.0

    def current(self) -> Knobs:
        return Knobs(clock_mhz=self.clock_mhz)

    def _apply(self, knobs: Knobs) -> None:
        self.clock_mhz = knobs["clock_mhz"]

    def _snapshot(self) -> object:
        return self.clock_mhz

    def _restore(self, snapshot: object) -> None:
        assert isinstance(snapshot, float)
        self.clock_mhz = snapshot


class RealTimeDevice(TwoClocks, Device):
    """A device on real time, whose power is a function of its present clock."""

    def __init__(self, power_w: Callable[[float], float] = lambda clock_mhz: clock_mhz / 50):
        self._power_w = power_w
        self._begin_s = time.monotonic()

    def now_s(self) -> float:
        return time.monotonic() - self._begin_s

    def power_w(self) -> float:
        return self._power_w(self.clock_mhz)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    @contextmanager
    def step(self, work: StepWork) -> Iterator[None]:
        yield
