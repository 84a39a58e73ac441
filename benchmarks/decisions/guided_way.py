"""The guided profile on a rig, as `wattune profile --strategy guided` runs it, and its loop with the proxy."""

from __future__ import annotations

import math
import time
from typing import Any

from benchmarks.decisions import estimators
from benchmarks.decisions.boards import Cell, Reading, Rig
from benchmarks.decisions.estimators import Bank, Decision
from benchmarks.decisions.profilers import Found, Samples, result
from wattune.decisions.curve import CurvePosterior
from wattune.decisions.prior import relative_samples
from wattune.devices.base import Device, Sensor
from wattune.profiling.grid import Shape
from wattune.profiling.guided import WINDOWS, Guided, guided
from wattune.profiling.notebook import Notebook
from wattune.records import AbortedProbe, ProfileCell, ProfileCost

REST = 0.9
"""Power at rest over the least that any cell draws."""

NEVER = 1e6
"""Relative samples of a batch size none of whose runs came to the target."""

Believed = dict[int, tuple[float, float]]
"""Batch size -> relative samples, and the standard deviation of their logarithm."""


class RigDevice(Device):
    """What a guided profile asks of a device beside the probes."""

    kind = "simulated"
    actuator = "clock_mhz"
    mode = ""
    memory_bytes = None
    data_types = frozenset({"fp32"})
    executes_steps = False

    def __init__(self, rig: Rig):
        board = rig.board
        self.name = board.name
        self.settings = board.clocks_mhz
        self.volts = board.volts
        self.sensor = Sensor(
            "board",
            resolution_w=board.resolution_w,
            period_s=board.window_s / 2,
            window_s=board.window_s,
            lag_s=board.lag_s,
            noise_w=board.noise_w if board.noise_known else 0.0,
        )
        self._rig = rig
        self._setting: float | None = None

    def now_s(self) -> float:
        """Time that the rig has spent."""
        return self._rig.seconds

    def power_w(self) -> float:
        """At rest: it is asked only then."""
        return REST * float(self._rig.board.power_w.min())

    def wait(self, seconds: float) -> None:
        """Time goes by."""
        self._rig.seconds += seconds

    def step(self, work: Any) -> Any:
        """Never asked: cells are measured by the rig."""
        raise NotImplementedError

    def current(self) -> float | None:
        """As it was set."""
        return self._setting

    def _apply(self, value: float) -> None:
        self._setting = value

    def _snapshot(self) -> object:
        return self._setting

    def _restore(self, snapshot: object) -> None:
        self._setting = snapshot  # type: ignore[assignment]


class Profile:
    """A guided profile that can go on with more known of the samples."""

    def __init__(self, rig: Rig, *, strict: bool = False):
        self.rig, self._strict = rig, strict
        self._device = RigDevice(rig)
        self._notebook = Notebook(None, self._device, None)  # type: ignore[arg-type]  # only a file needs its beginning
        self._asked_s = math.nan
        self.step_s: list[float] = []

    def go_on(self, samples: Believed, *, by_curve: bool) -> Guided:
        """Probe until nothing is left to gain."""
        rows = [(size, size) for size in self.rig.board.batch_sizes]
        self._asked_s = time.perf_counter()
        return guided(
            self._device,
            rows,
            self._notebook,
            self._measure,
            cap_w=self.rig.cap_w,
            samples=samples,
            by_curve=by_curve,
            strict=self._strict,
        )

    def _measure(self, shape: Shape, setting: float | None) -> None:
        self.step_s.append(time.perf_counter() - self._asked_s)
        self._notebook.measure(None, self, shape, setting)
        self._asked_s = time.perf_counter()

    def probe(self, shape: Shape, setting: float | None) -> tuple[ProfileCell | AbortedProbe, ProfileCost]:
        """As the notebook wants it."""
        assert setting is not None
        cell, before_s = Cell(shape[0], setting), self.rig.seconds
        read = self.rig.probe(cell, windows=WINDOWS)
        cost = ProfileCost(
            time_s=self.rig.seconds - before_s, energy_j=0.0, above_cap_s=0.0, probes=1, cap_w=self.rig.cap_w
        )
        return result(self.rig, cell, read), cost


def guided_way(rig: Rig, samples: Samples, *, strict: bool = False) -> Found:
    """With the samples known exactly."""
    profile = Profile(rig, strict=strict)
    return _found(profile, profile.go_on({size: (one, 0.0) for size, one in samples.items()}, by_curve=True))


def together(rig: Rig, bank: Bank) -> tuple[Found, Decision]:
    """Profile by what is usual, train the proxy at the batch sizes that may be best, profile on by what that showed."""
    profile = Profile(rig)
    first = profile.go_on(relative_samples(rig.board.batch_sizes), by_curve=False)
    times: dict[int, float] = {}
    for cell in first.cells:
        if cell.step_s is not None and cell.power_peak_w is not None and cell.power_peak_w <= rig.cap_w:
            times[cell.batch_size] = min(times.get(cell.batch_size, math.inf), cell.step_s / cell.batch_size)
    if not times:
        return _found(profile, first), Decision(None)
    decision = estimators.ours(bank, times)
    if decision.curve is None or not any(decision.curve.runs.values()):
        return _found(profile, first), decision
    return _found(profile, profile.go_on(believed(decision.curve), by_curve=True)), decision


def believed(curve: CurvePosterior) -> Believed:
    """The curve as a guided profile takes it, around the batch size in the middle, where it begins."""
    start = len(curve.batch_sizes) // 2
    found = {}
    for place, size in enumerate(curve.batch_sizes):
        c = curve.covariance
        variance = c[place, place] + c[start, start] - 2 * c[place, start]
        if size in curve.lost:
            found[size] = (NEVER, 0.0)
        else:
            found[size] = (math.exp(float(curve.mean[place] - curve.mean[start])), math.sqrt(max(0.0, float(variance))))
    return found


def _found(profile: Profile, end: Guided) -> Found:
    pick = end.guidance.pick
    measured = {
        Cell(cell.batch_size, cell.clock_mhz): Reading(
            cell.step_s, 0.0, cell.power_mean_w, 0.0, cell.power_peak_w, cell.steps or 1
        )
        for cell in end.cells
        if cell.clock_mhz and cell.step_s and cell.power_mean_w and cell.power_peak_w
    }
    return Found(
        pick=None if pick is None else Cell(pick.batch_size, pick.clock_mhz or 0.0),
        measured=measured,
        reason=end.guidance.stopped_because,
        step_s=profile.step_s,
        stated=end.guidance.p_above_cap,
    )
