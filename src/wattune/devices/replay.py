"""A table that was measured elsewhere, as a device to measure: nothing is modelled, and cells it lacks are refused."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattune.devices.base import Knob, Sensor
from wattune.devices.replay_table import read_profile
from wattune.devices.spec_options import split_options
from wattune.devices.virtual_time import Piece, VirtualDevice, multiples, next_multiple
from wattune.errors import InputError, OutOfDeviceMemory, RecordError
from wattune.files import read_json
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.records import ProfileCell, ProfileTable, StepWork
from wattune.tables import Layout, parse_columns

PERIOD_S = 0.1
"""Time between fresh readings of a replayed sensor."""

NOISE = 0.02
"""Standard deviation of a reading relative to the power, for cells whose table has none."""

LEAST = 0.1
"""Least that noise leaves of a step time or a power."""

SHORTER = 0.7
"""Least share of the smallest batch's step time that the largest batch's step takes."""

EVALUATION_PHASES = frozenset({"forward", "host"})
"""Phases of an evaluation: work with no other phase is not a training step."""


@dataclass(frozen=True)
class Noise:
    """Noise of a table that is drawn from.

    ``relative``: standard deviation of a reading relative to the power, for cells without one; ``period_s``: time
    between fresh readings.
    """

    relative: float = NOISE
    period_s: float = PERIOD_S
    seed: int = 0


class ReplayDevice(VirtualDevice):
    """Draws the steps and readings of a table's cells, on virtual time.

    Step times and readings are drawn around the cells' means with the cells' standard deviations. Peaks are not used. A
    reading is of an instant, and shown until the next reading. At rest, the power is the lowest of the table.

    The setting may change in the middle of a step. If there is no cell for the rest, the cell of that batch that draws
    least gives the rest. An evaluation takes the time of the last step in proportion to its FLOPs.
    """

    kind = "replayed"

    def __init__(self, table: ProfileTable, noise: Noise | None = None):
        super().__init__()
        if not table.measured:
            raise RecordError("the profile has no measured cell", allowed="at least one", hint="measure it again")
        self._noise = noise = noise or Noise()
        self.replayed_table: ProfileTable = table
        self.name = table.device
        mode = table.key.mode if table.key else "as recorded"
        self.mode = f"{mode}, table {_digest(table)}, noise {noise.relative:g}, every {noise.period_s:g} s"
        self.knobs = _knobs(table)
        self.memory_bytes = None
        self.supply, self.highest_w = table.supply, table.highest_w
        self.data_types = frozenset({table.key.data_type} if table.key else {"fp32", "tf32", "fp16", "bf16"})
        self.sensor = Sensor(rail="as recorded", period_s=noise.period_s)
        self.problems = _doubts(table)
        self._cells: dict[OperatingPoint, ProfileCell] = {cell.point: cell for cell in table.measured}
        self._too_large = {cell.shape for cell in table.cells if cell.out_of_memory}
        self._present = table.combinations[-1]
        self._cell: ProfileCell | None = None
        self._flops = 0.0  # of the last step
        self._lowest = min(table.measured, key=_by_power)
        self._least = {cell.shape: cell for cell in sorted(table.measured, key=_by_power, reverse=True)}
        self._seed, self._steps, self._period = noise.seed, 0, 0
        self._spread_w = 0.0  # standard deviation of a reading at present
        self._shown_w = self._drawn_w(self._at_rest().power_w)

    # ---------------------------------------------------------------------------------------------- of the interface

    def current(self) -> Knobs | None:
        """The setting that is replayed; None if the table has none."""
        return self._present or None

    def _apply(self, knobs: Knobs) -> None:
        self._present = knobs

    def power_w(self) -> float:
        """The present reading."""
        return self._shown_w

    def _check(self, work: StepWork) -> None:
        if work.data_type not in self.data_types:
            raise InputError(
                f"{self.name} was recorded with another data type than",
                value=work.data_type,
                allowed=", ".join(sorted(self.data_types)),
            )
        self._share(work)

    def _pieces(self, work: StepWork) -> tuple[int, Callable[[int], Piece]]:
        self._steps += 1
        normal = self._normal("step", self._steps)

        def piece(index: int) -> Piece:
            cell, share = self._share(work, begun=True)
            self._spread_w = self._spread_of(cell)
            step_s = _step_s(cell)
            return Piece(share * max(LEAST * step_s, step_s + normal * (cell.step_std_s or 0.0)), _mean_w(cell))

        return 1, piece

    def _at_rest(self) -> Piece:
        self._spread_w = self._spread_of(self._lowest)
        return Piece(1.0, _mean_w(self._lowest))

    def _share(self, work: StepWork, *, begun: bool = False) -> tuple[ProfileCell, float]:
        """The cell that this work is priced from, and the work as a share of its step."""
        if self._flops > 0 and {phase.phase for phase in work.phases} <= EVALUATION_PHASES:
            assert self._cell is not None
            present = self._cells.get(OperatingPoint(self._cell.shape, self._present), self._cell)
            return present, work.flops / self._flops
        cell = self._replay(work, begun=begun)
        self._flops = work.flops
        return cell, 1.0

    def _replay(self, work: StepWork, *, begun: bool) -> ProfileCell:
        point = OperatingPoint(BatchShape(work.samples, work.micro_batch_size), self._present)
        if point.shape in self._too_large:
            raise OutOfDeviceMemory(f"batch size {work.samples} did not fit {self.name} when it was recorded")
        cell = self._cells.get(point)
        if cell is None and begun:
            cell = self._least.get(point.shape)
        if cell is None:
            raise InputError(
                f"{self.name} is a recording without a cell for this step",
                value=str(point),
                allowed="batch sizes "
                + ", ".join(str(b) for b in self.replayed_table.batch_sizes)
                + " at what was measured",
            )
        self._cell = cell
        return cell

    # ---------------------------------------------------------------------------------------------------------- noise

    def _next_event_s(self, power_w: float) -> float:
        return next_multiple(self._now_s, self._noise.period_s)

    def _advance(self, until_s: float, power_w: float) -> None:
        super()._advance(until_s, power_w)
        if (period := multiples(until_s, self._noise.period_s)) > self._period:
            self._period = period
            self._shown_w = self._drawn_w(power_w)

    def _drawn_w(self, power_w: float) -> float:
        return max(LEAST * power_w, power_w + self._spread_w * self._normal("reading", self._period))

    def _spread_of(self, cell: ProfileCell) -> float:
        return self._noise.relative * _mean_w(cell) if cell.power_std_w is None else cell.power_std_w

    def _normal(self, what: str, number: int) -> float:
        """A normal number that depends on the seed and these alone, so that a resumed run draws the same."""
        return random.Random(f"{self._seed}/{what}/{number}").gauss(0.0, 1.0)

    # ---------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Time, setting and the present cell, as JSON values."""
        cell = self._cell
        return {
            "now_s": self._now_s,
            "setting": dict(self._present),
            "cell": None if cell is None else [*cell.shape, dict(cell.knobs)],
            "flops": self._flops,
            "noise": [self._seed, self._steps, self._period, self._shown_w],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``. Raises: InputError if it belongs to another table."""
        point = None
        if state["cell"] is not None:
            batch, micro, knobs = state["cell"]
            point = OperatingPoint(BatchShape(batch, micro), self.knobs_from(knobs))
        if state["noise"] is None or (point is not None and point not in self._cells):
            raise InputError("the state belongs to another recording than", value=self.name)
        self._now_s, self._present = state["now_s"], self.knobs_from(state["setting"])
        self._cell, self._flops = None if point is None else self._cells[point], state["flops"]
        self._seed, self._steps, self._period, self._shown_w = state["noise"]


def _knobs(table: ProfileTable) -> tuple[Knob, ...]:
    names = {tuple(cell.knobs) for cell in table.cells if not cell.out_of_memory or cell.knobs}
    if len(names) > 1:
        raise RecordError(
            "the cells of a profile that is replayed must have one kind of setting",
            value=f"{table.device} mixes them",
            allowed="all with clock_mhz, all with power_limit_w, or all without",
        )
    return tuple(Knob(name, tuple(sorted({knobs[name] for knobs in table.combinations}))) for name in names.pop())


def _doubts(table: ProfileTable) -> tuple[str, ...]:
    """Figures that contradict each other: a step of a larger batch takes at least about as long."""
    for knobs in table.combinations:
        cells = sorted((cell for cell in table.measured if cell.knobs == knobs), key=lambda cell: cell.batch_size)
        if cells and _step_s(cells[-1]) < SHORTER * _step_s(cells[0]):
            first, last = (f"{_step_s(cell):g} s at {cell.batch_size}" for cell in (cells[0], cells[-1]))
            return (f"steps get shorter as batches grow, {first} and {last}: are these times of an epoch?",)
    return ()


def _digest(table: ProfileTable) -> str:
    cells = sorted(table.cells, key=lambda cell: cell.point.order)
    return hashlib.sha256(json.dumps([cell.model_dump(mode="json") for cell in cells]).encode()).hexdigest()[:8]


def _by_power(cell: ProfileCell) -> tuple[Any, ...]:
    """Sort key by power; of cells that draw equally much, the order of the table must not decide."""
    return _mean_w(cell), cell.point.order


def _mean_w(cell: ProfileCell) -> float:
    assert cell.power_mean_w is not None  # held by the record for every measured cell
    return cell.power_mean_w


def _step_s(cell: ProfileCell) -> float:
    assert cell.step_s is not None  # held by the record for every measured cell
    return cell.step_s


def replayed(table: ProfileTable) -> ReplayDevice:
    """Make a device of a table whose readings have the deviations of its cells alone."""
    return ReplayDevice(table, Noise(relative=0.0))


def open_replay(rest: str, *, seed: int = 0) -> ReplayDevice:
    """Open a table as a device to measure: a profile record, or a table of any program.

    Options: ``?noise=0.02&period_s=0.1&seed=0&columns=step_ms=time,...``; a seed among them is used instead of
    ``seed``. Raises: RecordError, InputError.
    """
    name, options = split_options(rest, "?", ("noise", "period_s", "seed", "columns"), device="replay")
    content = _json_in(Path(name)) if name.endswith(".json") else None
    is_record = isinstance(content, dict) and "record" in content
    return ReplayDevice(
        ProfileTable.parse(content, source=name)
        if is_record
        else read_profile(Path(name), Layout(parse_columns(options.get("columns", "")))),
        Noise(
            relative=_option(options, "noise", NOISE, 0.0, 1.0),
            period_s=_option(options, "period_s", PERIOD_S, 0.001, 60.0),
            seed=int(_option(options, "seed", seed, 0, 2**32 - 1)),
        ),
    )


def _json_in(path: Path) -> object:
    """The content of a JSON file; None if it has another form, such as one object a line. Raises: RecordError."""
    try:
        return read_json(path)
    except RecordError:
        if path.is_file():
            return None
        raise


def _option(options: dict[str, str], name: str, default: float, least: float, most: float) -> float:
    text = options.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most or (name == "seed" and value != int(value)):
        kind = "whole numbers" if name == "seed" else "numbers"
        raise InputError(f"replay: {name}", value=text, allowed=f"{kind} from {least:g} to {most:.10g}")
    return value
