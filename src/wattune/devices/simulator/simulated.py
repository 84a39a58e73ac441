"""A simulated board as an ordinary device: virtual time, a sensor that averages, lags and rounds, heat, and faults."""

from __future__ import annotations

import math
import random
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wattune.devices.base import ExactStep, GroundTruth, Sensor
from wattune.devices.simulator.board_file import Chip, ProcessorName, SimulatedBoard, builtin_board, load_board
from wattune.devices.simulator.exact_steps import exact
from wattune.devices.simulator.roofline import REFERENCE_C, Segment, highest_w, idle, segments
from wattune.devices.simulator.thermal_energy import Energy
from wattune.devices.virtual_time import NEVER, Piece, VirtualDevice, multiples, next_multiple
from wattune.errors import InputError, OutOfDeviceMemory, SensorError
from wattune.point import Knobs
from wattune.records import ExactFigures, StepWork, Supply

MEBIBYTE = 2**20
CACHED_STEPS = 256
UNCHECKED = "its timings were never checked against real hardware"
NOISE_LIMIT = 3.0
"""Limit of the sensor's noise, in standard deviations."""


class SimulatedGroundTruth(GroundTruth):
    """Exact accounting of a simulated board from the moment it was asked for; its state survives a restart."""

    def __init__(self, device: SimulatedDevice, cap_w: float | None, window_s: float | None):
        self._device = device
        self._cap_w = NEVER if cap_w is None else cap_w
        self._window_s = window_s
        self._begin_s = device.now_s()
        self._begin_j = device._energy.total_j
        self._above_s = 0.0
        self._refresh()

    def figures(self) -> ExactFigures:
        """Joules, seconds, and seconds during which the mean power of the window was above the cap."""
        return ExactFigures(
            energy_j=max(0.0, self._device._energy.total_j - self._begin_j),
            above_cap_s=self._above_s,
            time_s=self._device.now_s() - self._begin_s,
        )

    def move_cap(self, cap_w: float | None) -> None:
        """Count the time in which the mean of the window is above this cap from now on."""
        self._cap_w = NEVER if cap_w is None else cap_w
        self._refresh()

    def window_mean_w(self) -> float:
        """Exact mean power of the window at the sensor's last refresh."""
        return self._device._window_mean_w(self._window_s)

    def state_dict(self) -> dict[str, Any]:
        """State from which a later ground truth continues, as JSON values."""
        return {"begin_s": self._begin_s, "begin_j": self._begin_j, "above_s": self._above_s, "above": self._above}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``, on a device that has loaded its own state of the same moment."""
        self._begin_s, self._begin_j = state["begin_s"], state["begin_j"]
        self._above_s, self._above = state["above_s"], state["above"]

    def _elapse(self, seconds: float) -> None:
        self._above_s += seconds if self._above else 0.0

    def _refresh(self) -> None:
        self._above = self.window_mean_w() > self._cap_w


class SimulatedDevice(VirtualDevice):
    """A board file as a device. ``processor``: the one of the board's processors that trains; ``seed``: of the noise.

    The board starts at its highest clocks, at rest, at the temperature of rest. ``state_dict`` holds everything except
    the open contexts; a device that loads it continues exactly as this one would, before or inside ``at``.
    """

    kind = "simulated"

    def __init__(self, board: SimulatedBoard, processor: ProcessorName = "gpu", *, seed: int = 0):
        super().__init__()
        self.board = board
        self.processor: ProcessorName = processor
        self._chip: Chip = board.chip(processor)
        self.name = f"sim:{board.name}" + (":cpu" if processor == "cpu" else "")
        label, self.problems = _calibration(board, processor)
        self.mode = f"{board.mode}, {label}board file {board.digest}"
        self.knobs = self._chip.knobs
        self.highest_w = highest_w(self._chip, self.combinations()[-1], board.thermal.throttle_c)
        self.data_types = frozenset(self._chip.processor.peak_gflops)
        taken_mib = board.memory.system_mib + self._chip.access.context_mib
        self._available_bytes = (board.memory.size_mib - taken_mib) * MEBIBYTE
        self.memory_bytes = self._available_bytes
        self.supply = None if board.supply is None else Supply(**board.supply.model_dump())
        self.sensor = Sensor(rail=board.rails.board, **board.sensor.model_dump())
        self._seed = seed
        self._clocks_mhz = self._chip.processor.clocks_mhz
        self._present = self._effective = self.combinations()[-1]
        self._highest = len(self._clocks_mhz) - 1  # index of the highest clock that heat allows
        self._steps: dict[int, tuple[StepWork, dict[Knobs, tuple[Segment, ...]]]] = {}
        self._idle = {knobs: idle(self._chip, knobs) for knobs in self.combinations()}
        self._temperature_c = board.thermal.ambient_c
        self._temperature_c = self._balance_c(self._at_rest().power_w)
        self._energy = Energy(2 * self.sensor.settle_s, self._at_rest().power_w)
        self._fault_times_s = sorted({t for f in board.fault for t in (f.time_s, f.time_s + f.duration_s)})
        self._truths: weakref.WeakSet[SimulatedGroundTruth] = weakref.WeakSet()
        self._reading: tuple[int, float] | None = None
        self._plan_events()

    # --------------------------------------------------------------------------------------------------------- knobs

    @property
    def effective_mhz(self) -> float:
        """The clock that the chip runs at: the one that is set, or less while it is too hot."""
        return self._effective["clock_mhz"]

    @property
    def temperature_c(self) -> float:
        """Temperature of the chip."""
        return self._temperature_c

    def current(self) -> Knobs:
        """The clocks that are set; heat may hold the chip below them."""
        return self._present

    def _apply(self, knobs: Knobs) -> None:
        self._present = knobs
        self._clamp()

    def _clamp(self) -> None:
        present = self._present
        highest_mhz = self._clocks_mhz[self._highest]
        is_clamped = present["clock_mhz"] > highest_mhz
        self._effective = present.replace(clock_mhz=highest_mhz) if is_clamped else present

    # ---------------------------------------------------------------------------------------------------------- work

    def _check(self, work: StepWork) -> None:
        if work.data_type not in self.data_types:
            raise InputError(
                f"{self.name} cannot compute in", value=work.data_type, allowed=", ".join(sorted(self.data_types))
            )
        if work.peak_memory_bytes > self._available_bytes:
            raise OutOfDeviceMemory(
                f"batch size {work.samples} does not fit {self.name}: {work.peak_memory_bytes / MEBIBYTE:.0f} MiB "
                f"needed, {self._available_bytes / MEBIBYTE:.0f} MiB available",
                needed_bytes=work.peak_memory_bytes,
                available_bytes=self._available_bytes,
            )

    def _pieces(self, work: StepWork) -> tuple[int, Callable[[int], Piece]]:
        # Kept by identity, since hashing a work takes longer than timing it; the entry keeps the work alive.
        entry = self._steps.get(id(work))
        if entry is None:
            if len(self._steps) >= CACHED_STEPS:
                self._steps.clear()
            entry = self._steps[id(work)] = (work, {})
        timings = entry[1]

        def at_present() -> tuple[Segment, ...]:
            knobs = self._effective
            if knobs not in timings:
                timings[knobs] = segments(work, self._chip, knobs)
            return timings[knobs]

        def piece(index: int) -> Piece:
            segment = at_present()[index]
            return Piece(segment.seconds * self._fault("slowdown"), self._power_of(segment))

        return len(at_present()), piece

    def _at_rest(self) -> Piece:
        return Piece(1.0, self._power_of(self._idle[self._effective]))

    def _power_of(self, segment: Segment) -> float:
        return segment.power_w(self._chip.power.leakage_per_degree, self._temperature_c) * self._fault("power")

    def _exact_rest_w(self, knobs: Knobs) -> float:
        """Noise-free power at rest at this setting, with a chip at 25 degrees."""
        return self._idle[knobs].power_w(self._chip.power.leakage_per_degree, REFERENCE_C)

    # --------------------------------------------------------------------------------------------------------- events

    def _plan_events(self) -> None:
        now_s = self._now_s
        self._poll_s = next_multiple(now_s, self.board.thermal.poll_s)
        self._refresh_s = next_multiple(now_s, self.sensor.period_s)
        self._fault_s = next((t for t in self._fault_times_s if t > now_s), NEVER)

    def _next_event_s(self, power_w: float) -> float:
        event_s = min(self._fault_s, self._refresh_s if self._truths else NEVER)
        thermal = self.board.thermal
        hottest_c = max(self._temperature_c, self._balance_c(power_w))
        if (
            hottest_c >= thermal.throttle_c - thermal.release_c
            or self._highest < len(self._clocks_mhz) - 1
            or self._chip.power.leakage_per_degree > 0
        ):  # otherwise a poll of the temperature changes nothing
            if self._poll_s <= self._now_s:
                self._poll_s = next_multiple(self._now_s, thermal.poll_s)
            event_s = min(event_s, self._poll_s)
        return event_s

    def _advance(self, until_s: float, power_w: float) -> None:
        seconds = until_s - self._now_s
        balance_c = self._balance_c(power_w)
        decay = math.exp(-seconds / self.board.thermal.tau_s)
        self._temperature_c = balance_c + (self._temperature_c - balance_c) * decay
        self._energy.add(until_s, power_w)
        for truth in self._truths:
            truth._elapse(seconds)
        self._now_s = until_s

    def _balance_c(self, power_w: float) -> float:
        return self.board.thermal.ambient_c + self.board.thermal.rth_c_per_w * power_w

    def _handle_events(self) -> None:
        if self._now_s >= self._poll_s:
            self._throttle()
        if self._now_s >= self._refresh_s:
            for truth in self._truths:
                truth._refresh()
        if self._now_s >= min(self._poll_s, self._refresh_s, self._fault_s):
            self._plan_events()

    def _throttle(self) -> None:
        thermal = self.board.thermal
        if self._temperature_c >= thermal.throttle_c:
            self._highest = max(0, self._clocks_mhz.index(self.effective_mhz) - 1)
        elif self._temperature_c < thermal.throttle_c - thermal.release_c:
            self._highest = min(len(self._clocks_mhz) - 1, self._highest + 1)
        self._clamp()

    def _fault(self, kind: str) -> float:
        gain = 1.0
        for fault in self.board.fault:
            if fault.kind == kind and fault.time_s <= self._now_s < fault.time_s + fault.duration_s:
                gain *= fault.gain or 1.0
        return gain

    # --------------------------------------------------------------------------------------------------------- sensor

    def power_w(self) -> float:
        """The sensor's value since its last refresh. Raises: SensorError while it has dropped out."""
        for fault in self.board.fault:
            if fault.kind == "dropout" and fault.time_s <= self._now_s < fault.time_s + fault.duration_s:
                raise SensorError(f"{self.name}: the sensor {self.sensor.rail} gives no reading")
        index = multiples(self._now_s, self.sensor.period_s)
        if self._reading is None or self._reading[0] != index:
            self._reading = index, self._read(index)
        return self._reading[1]

    def _read(self, index: int) -> float:
        value = self._window_mean_w() * self._fault("reading")
        if self.sensor.noise_w > 0:
            # A function of seed and instant, so that no state of a generator has to be kept.
            normal = random.Random(f"{self._seed}/{index}").gauss(0.0, 1.0)
            value += self.sensor.noise_w * max(-NOISE_LIMIT, min(NOISE_LIMIT, normal))
        step_w = self.sensor.resolution_w
        if step_w > 0:
            value = max(1, round(value / step_w)) * step_w
        if value <= 0:
            raise SensorError(f"{self.name}: the sensor {self.sensor.rail} reads {value:.3f} W")
        return value

    def _window_mean_w(self, window_s: float | None = None) -> float:
        """Reading of a sensor without noise and rounding that averages over ``window_s`` (None: as this one does)."""
        sensor = self.sensor
        end_s = multiples(self._now_s, sensor.period_s) * sensor.period_s - sensor.lag_s
        return self._energy.mean_w(end_s - (sensor.window_s if window_s is None else window_s), end_s)

    def ground_truth(self, cap_w: float | None, window_s: float | None = None) -> SimulatedGroundTruth:
        """Exact accounting against ``cap_w`` from now on, over the cap's window or over the sensor's own (None)."""
        self._energy.keep(window_s or 0.0)
        truth = SimulatedGroundTruth(self, cap_w, window_s)
        self._truths.add(truth)
        self._plan_events()
        return truth

    def exact_steps(self, work: StepWork) -> dict[Knobs, ExactStep]:
        """Setting -> exact figures of a step of this work by the board's formulas, with a chip at 25 degrees."""
        return exact(self.board, self.processor, work)

    def as_new(self) -> SimulatedDevice:
        """A new device of the same board file and knobs, with the first seed."""
        device = SimulatedDevice(self.board, self.processor)
        device.select([knob.name for knob in self.knobs])
        return device

    # ---------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Time, clocks, temperature, the sensor's past and the seed, as JSON values."""
        return {
            "now_s": self._now_s,
            **self._present,
            "highest": self._highest,
            "temperature_c": self._temperature_c,
            "energy": self._energy.state(),
            "reading": self._reading,
            "seed": self._seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``. Raises: InputError if its clocks are not those of this board."""
        knobs = Knobs({knob.name: state[knob.name] for knob in self.knobs if knob.name in state})
        self.check_knobs(knobs)
        self._now_s = state["now_s"]
        self._highest = state["highest"]
        self._present = knobs
        self._clamp()
        self._temperature_c = state["temperature_c"]
        self._energy.load(state["energy"])
        self._reading = tuple(state["reading"]) if state["reading"] else None
        self._seed = state["seed"]
        self._plan_events()


def _calibration(board: SimulatedBoard, processor: ProcessorName) -> tuple[str, tuple[str, ...]]:
    """Words for the mode, and the problem to list, of a board whose times were compared with nothing."""
    if isinstance(board.calibrated, str) and processor == "gpu":
        return "partly calibrated, ", (f"partly calibrated board: {board.calibrated}; {UNCHECKED}",)
    if board.calibrated is False or isinstance(board.calibrated, str):
        return "uncalibrated, ", (f"uncalibrated board: {UNCHECKED}",)
    return "", ()


def open_simulated(rest: str, *, seed: int = 0) -> SimulatedDevice:
    """Open the board called ``rest``, or described by the file ``rest``; ":cpu" behind it trains on its CPU.

    Raises: UnknownName, InputError.
    """
    name, cpu = (rest[: -len(":cpu")], True) if rest.endswith(":cpu") else (rest, False)
    board = load_board(Path(name)) if name.endswith(".toml") else builtin_board(name)
    return SimulatedDevice(board, "cpu" if cpu else "gpu", seed=seed)
