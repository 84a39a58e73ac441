"""Measurements on a device."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import model_validator
from typing_extensions import Self

from wattune.goal import TIME, Goal
from wattune.point import Knobs
from wattune.records.base import (
    BatchSize,
    Flag,
    NotNegative,
    Number,
    Positive,
    Record,
    Samples,
    Share,
    Supply,
    Value,
    Whole,
)
from wattune.records.work import AtPoint, KnobFields, PointRecord


class ProfileCell(AtPoint):
    """One measured (batch size, clock). A cell that did not fit has ``out_of_memory`` and no figures.

    ``power_peak_w`` is the largest reading of the sensor, ``power_window_w`` the highest mean over the cap's window
    (``cap_window_s`` of the table); ``step_s`` the mean over ``steps`` steps. State of the board
    during the measurement: ``throttled``, the causes of throttling; ``over_current``, the number of over-current
    events; ``swapped_bytes``, the memory swapped in and out; ``temperature_c``, the highest temperature; None if the
    board does not report it. ``notices``: what held the clock below its setting in the board's ordinary state, such as
    a card's own power limit. ``probes``: the number of probes if more than one; means are then over all of them, the
    peak is the highest. ``p_above_cap``: the probability that its power, without sensor noise, is above the cap of a
    guided profile. ``memory_bytes``: the peak memory of a step, with parameters, gradients and the optimizer's state;
    None if unknown.
    """

    step_s: Positive | None = None
    step_std_s: NotNegative | None = None
    power_mean_w: Positive | None = None
    power_std_w: NotNegative | None = None
    power_peak_w: Positive | None = None
    power_window_w: Positive | None = None
    steps: BatchSize | None = None
    out_of_memory: Flag = False
    throttled: tuple[str, ...] = ()
    over_current: Samples | None = None
    swapped_bytes: NotNegative | None = None
    temperature_c: Number | None = None
    notices: tuple[str, ...] = ()
    probes: BatchSize | None = None
    p_above_cap: Share | None = None
    memory_bytes: Positive | None = None

    @property
    def highest_w(self) -> float | None:
        """The highest power that was seen, in the terms of the cap it was measured under: a mean, or a reading."""
        return self.power_window_w or self.power_peak_w

    @property
    def disturbed(self) -> bool:
        """True if the board was throttled, so that the figures are not those of the setting."""
        return bool(self.throttled or self.over_current)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        figures = (self.step_s, self.power_mean_w, self.power_peak_w)
        if self.out_of_memory:
            if any(figure is not None for figure in figures):
                raise ValueError("a cell that is out of memory has no step_s, power_mean_w or power_peak_w")
        elif any(figure is None for figure in figures):
            raise ValueError("step_s, power_mean_w and power_peak_w, unless out_of_memory is true")
        if self.micro_batch_size is not None and self.micro_batch_size > self.batch_size:
            raise ValueError("micro_batch_size at most batch_size")
        return self


class AbortedProbe(AtPoint):
    """A probe that was stopped once the mean over the cap's window was surely above the cap; it gave no other figures.

    A cap on peaks stops a probe at the first reading above it.
    """

    cap_w: Positive
    power_w: Positive


class Confirmation(AtPoint):
    """A cell that was measured again, for longer, before a training run used it; its figures are in the cell.

    ``power_w``: the highest power then, a mean over ``cap_window_s`` seconds; None: the highest reading.
    """

    cap_w: Positive
    cap_window_s: Positive | None = None
    power_w: Positive


class ReferencePower(KnobFields):
    """Power of one reference workload at one clock: what a worst-case clock is chosen from.

    ``stopped``: the probe was stopped at this reading, the first above the cap, so the peak may be higher. The mean
    power, its spread and the step time are those of a ``ProfileCell``; None if the probe was stopped, and in older
    files.
    """

    workload: str
    batch_size: BatchSize
    power_peak_w: Positive
    power_window_w: Positive | None = None
    power_mean_w: Positive | None = None
    power_std_w: NotNegative | None = None
    step_s: Positive | None = None
    steps: BatchSize | None = None
    stopped: Flag = False


class ProfileCost(Value):
    """Cost of profiling on the device; ``above_cap_s`` is the time above ``cap_w``, 0 if that is None."""

    time_s: NotNegative
    energy_j: NotNegative
    above_cap_s: NotNegative
    probes: Samples
    cap_w: Positive | None = None


class ReferenceSet(Value):
    """Peak powers of the fixed set of reference workloads, and the version of that set.

    ``cost``: the cost of measuring them, once per device; it is not included in the profile's own cost.
    """

    set_version: Whole
    powers: tuple[ReferencePower, ...]
    cost: ProfileCost | None = None


_FORMER_PARTS = re.compile(r"(^|, )(fan|persistence) [^,]*")
"""Parts of a mode that earlier versions recorded, and that no mode has any more."""


class ProfileKey(Value):
    """Key of a profile table: all that it depends on, and never data values, weights or targets."""

    device: str
    mode: str
    model: str
    input_shape: str
    data_type: str
    optimizer: str
    algorithm: str
    software: str

    @property
    def _lasting_mode(self) -> str:
        return _FORMER_PARTS.sub("", self.mode).removeprefix(", ")

    def differences(self, other: ProfileKey) -> list[str]:
        """One text per field that differs, such as ``data_type (fp32, not fp16)``."""
        mine, theirs = ({**key.model_dump(), "mode": key._lasting_mode} for key in (self, other))
        return [f"{k} ({theirs[k]}, not {mine[k]})" for k in type(self).model_fields if mine[k] != theirs[k]]


class Pick(PointRecord):
    """The point that a guided profile picked, with its measured figures; None in records before they were added."""

    unwritten = PointRecord.unwritten | {"step_s", "power_mean_w", "power_peak_w"}

    step_s: Positive | None = None
    power_mean_w: Positive | None = None
    power_peak_w: Positive | None = None


class Guidance(Value):
    """End of a guided profile, and its pick of the measured points.

    ``samples_from``: source of the samples to target per batch size, an efficiency record or the prior. ``may_save``:
    expected share of the training time, or of what the ``goal`` makes least, that more probes could save.
    """

    strict: Flag
    samples_from: Literal["efficiency", "prior"]
    stopped_because: str
    may_save: NotNegative
    goal: Goal = TIME
    pick: Pick | None = None
    p_above_cap: Share | None = None


class Program(Value):
    """The program that was measured in place of a workload.

    ``command``: its command line, with ``{batch_size}`` and optionally ``{steps}``; ``device``: the device's spec;
    ``step_time``: source of its step times: printed lines, lines of a file, two runs of different length, or its steps.
    """

    command: str
    device: str
    step_time: Literal["printed", "file", "run lengths", "steps seen"]


class ProfileTable(Record):
    """Step time and power per (batch size, clock). A cell that was not measured is absent.

    ``supply``: losses between the terminals of the device's supply and its sensor; ``notes``: remarks about the table.
    ``rest_w``: power of the board at rest, at its lowest setting, which a guided profile reads before the first probe.
    ``program``: the measured program, if it is not a workload of wattune. ``cap_window_s``: seconds over which its cap,
    and a plan's, holds for the mean power; None if it holds for every reading.
    """

    name = "profile"
    written_by = "wattune profile"

    device: str
    workload: str
    algorithm: str = "backprop"
    cells: tuple[ProfileCell, ...]
    aborted: tuple[AbortedProbe, ...] = ()
    confirmed: tuple[Confirmation, ...] = ()
    reference: ReferenceSet | None = None
    key: ProfileKey | None = None
    cost: ProfileCost | None = None
    sensor_window_s: NotNegative | None = None
    cap_window_s: Positive | None = None
    rest_w: NotNegative | None = None
    sensor_rail: str | None = None
    strategy: str | None = None
    guided: Guidance | None = None
    supply: Supply | None = None
    notes: tuple[str, ...] = ()
    program: Program | None = None

    @model_validator(mode="after")
    def _same_knobs(self) -> Self:
        if len({tuple(cell.knobs) for cell in self.measured}) > 1:
            raise ValueError("the same knobs in every cell, such as clock_mhz, or none in any")
        return self

    @model_validator(mode="after")
    def _unique(self) -> Self:
        points = set()
        for cell in self.cells:
            if cell.point in points:
                raise ValueError(f"each cell once, but {cell.point} occurs twice")
            points.add(cell.point)
        return self

    @property
    def is_full_grid(self) -> bool:
        """True if every setting was to be measured, which a table without a strategy is taken for."""
        return self.strategy in (None, "full")

    @property
    def measured(self) -> tuple[ProfileCell, ...]:
        """The cells with figures."""
        return tuple(cell for cell in self.cells if not cell.out_of_memory)

    @property
    def highest_w(self) -> float | None:
        """The highest power of all cells, in watts; None without a measured one."""
        return max((cell.power_peak_w for cell in self.measured if cell.power_peak_w is not None), default=None)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Batch sizes of the measured cells, ascending."""
        return tuple(sorted({cell.batch_size for cell in self.measured}))

    @property
    def combinations(self) -> tuple[Knobs, ...]:
        """Knob settings of the measured cells, ascending; on a device without knobs, one empty setting."""
        return tuple(sorted({cell.knobs for cell in self.measured}))
