"""A table that was measured elsewhere, replayed as a device: nothing is modelled, and cells it lacks are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wattune.devices.base import Knob, Sensor
from wattune.devices.virtual_time import Piece, VirtualDevice, multiples
from wattune.errors import InputError, OutOfDeviceMemory, RecordError, SensorError
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.records import ProfileCell, ProfileTable, StepWork

PERIOD_S = 0.1
"""Time between fresh readings of a replayed sensor."""

CYCLE = 3
"""Readings after which a replayed cell repeats itself; more if its peak is far above its mean."""

EVALUATION_PHASES = frozenset({"forward", "host"})
"""Phases of an evaluation: work with no other phase is not a training step."""


class ReplayDevice(VirtualDevice):
    """Replays the cells of a profile on virtual time.

    A step takes the time of its cell; the setting may change in the middle of it, if there is a cell for the rest.
    Of each three readings the first is the cell's peak, the second lies as far below the mean as the peak lies above
    it, and the third is the mean; if the peak is far above the mean, several readings share the part below it. Mean
    and peak are therefore those measured. A table says nothing about the time between steps: the last cell's power
    holds there, and an evaluation takes the time of the last step in proportion to its FLOPs.
    """

    kind = "replayed"

    def __init__(self, table: ProfileTable):
        super().__init__()
        if not table.measured:
            raise RecordError("the profile has no measured cell", allowed="at least one", hint="measure it again")
        self.table = table
        self.name = table.device
        self.mode = table.key.mode if table.key else "as recorded"
        self.knobs = _knobs(table)
        self.memory_bytes = None
        self.supply = table.supply
        self.data_types = frozenset({table.key.data_type} if table.key else {"fp32", "tf32", "fp16", "bf16"})
        self.sensor = Sensor(rail="as recorded", period_s=PERIOD_S, window_s=table.sensor_window_s or CYCLE * PERIOD_S)
        self._cells: dict[OperatingPoint, ProfileCell] = {cell.point: cell for cell in table.measured}
        self._too_large = {cell.shape for cell in table.cells if cell.out_of_memory}
        self._present = table.combinations[-1]
        self._cell: ProfileCell | None = None
        self._flops = 0.0  # of the last step
        self._since = 0  # the sensor's period in which the present cell began

    # ---------------------------------------------------------------------------------------------- of the interface

    def current(self) -> Knobs | None:
        """The setting that is replayed; None if the table has none."""
        return self._present or None

    def _apply(self, knobs: Knobs) -> None:
        self._present = knobs

    def _snapshot(self) -> object:
        return self._present

    def _restore(self, snapshot: object) -> None:
        assert isinstance(snapshot, Knobs)
        self._present = snapshot

    def power_w(self) -> float:
        """The replayed reading. Raises: SensorError before the first step."""
        if self._cell is None:
            raise SensorError(f"{self.name} is a recording: there is no reading before the first step")
        number = multiples(self._now_s, PERIOD_S) - self._since - 1
        return _reading(self._cell, max(0, number))

    def _check(self, work: StepWork) -> None:
        if work.data_type not in self.data_types:
            raise InputError(
                f"{self.name} was recorded with another data type than",
                value=work.data_type,
                allowed=", ".join(sorted(self.data_types)),
            )
        self._seconds(work)

    def _pieces(self, work: StepWork) -> tuple[int, Callable[[int], Piece]]:
        def piece(index: int) -> Piece:
            return Piece(self._seconds(work), 0.0)  # its power is not used; readings come from the cell

        return 1, piece

    def _at_rest(self) -> Piece:
        return Piece(1.0, 0.0)

    def _seconds(self, work: StepWork) -> float:
        if self._flops > 0 and {phase.phase for phase in work.phases} <= EVALUATION_PHASES:
            assert self._cell is not None
            present = self._cells.get(OperatingPoint(self._cell.shape, self._present), self._cell)
            return _step_s(present) * work.flops / self._flops
        cell = self._replay(work)
        self._flops = work.flops
        return _step_s(cell)

    def _replay(self, work: StepWork) -> ProfileCell:
        point = OperatingPoint(BatchShape(work.samples, work.micro_batch_size), self._present)
        if point.shape in self._too_large:
            raise OutOfDeviceMemory(f"batch size {work.samples} did not fit {self.name} when it was recorded")
        cell = self._cells.get(point)
        if cell is None:
            raise InputError(
                f"{self.name} is a recording without a cell for this step",
                value=str(point),
                allowed="batch sizes " + ", ".join(str(b) for b in self.table.batch_sizes) + " at what was measured",
            )
        if cell is not self._cell:
            self._cell, self._since = cell, multiples(self._now_s, PERIOD_S)
        return cell

    def recorded_profile(self) -> ProfileTable:
        """The whole table that is replayed."""
        return self.table

    # ---------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Time, setting and the present cell, as JSON values."""
        cell = self._cell
        return {
            "now_s": self._now_s,
            "setting": dict(self._present),
            "cell": None if cell is None else [*cell.shape, dict(cell.knobs)],
            "since": self._since,
            "flops": self._flops,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``. Raises: InputError if it belongs to another table."""
        point = None
        if state["cell"] is not None:
            batch, micro, knobs = state["cell"]
            point = OperatingPoint(BatchShape(batch, micro), self.knobs_from(knobs))
            if point not in self._cells:
                raise InputError("the state belongs to another recording than", value=self.name)
        self._now_s, self._present = state["now_s"], self.knobs_from(state["setting"])
        self._since, self._flops = state["since"], state["flops"]
        self._cell = None if point is None else self._cells[point]


def _knobs(table: ProfileTable) -> tuple[Knob, ...]:
    names = {tuple(cell.knobs) for cell in table.cells if not cell.out_of_memory or cell.knobs}
    if len(names) > 1:
        raise RecordError(
            "the cells of a profile that is replayed must have one kind of setting",
            value=f"{table.device} mixes them",
            allowed="all with clock_mhz, all with power_limit_w, or all without",
        )
    return tuple(Knob(name, tuple(sorted({knobs[name] for knobs in table.combinations}))) for name in names.pop())


def _step_s(cell: ProfileCell) -> float:
    assert cell.step_s is not None  # held by the record for every measured cell
    return cell.step_s


def _reading(cell: ProfileCell, number: int) -> float:
    mean_w, peak_w = cell.power_mean_w, cell.power_peak_w
    assert mean_w is not None
    assert peak_w is not None
    # A peak below the mean is possible in files from other programs; it is replayed all the same.
    excess_w = peak_w - mean_w
    lows = max(1, math.ceil(excess_w / (0.9 * mean_w)))
    number %= max(CYCLE, 1 + lows)
    if number == 0:
        return peak_w
    return mean_w - excess_w / lows if number <= lows else mean_w


def open_recorded(rest: str, *, seed: int = 0) -> ReplayDevice:
    """Open the profile in the file ``rest`` as a device; the seed is not used. Raises: RecordError."""
    return ReplayDevice(ProfileTable.load(Path(rest)))
