"""What was measured on a device."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator
from typing_extensions import Self

from wattune.records.base import BatchSize, NotNegative, Number, Positive, Record, Samples, Share, Value
from wattune.records.board import Supply
from wattune.records.work import AtPoint, OperatingPoint


class ProfileCell(AtPoint):
    """One measured (batch size, clock). A cell that did not fit has ``out_of_memory`` and no figures.

    ``power_peak_w`` is the largest reading of the sensor; ``step_s`` the mean over ``steps`` steps.
    What the board said of itself meanwhile: ``throttled`` is what held its clocks down, ``over_current`` how many such
    events there were, ``swapped_bytes`` how much memory went to and from the swap, ``temperature_c`` the highest
    temperature; None where it does not tell. ``probes``: how many probes it was measured in, if more than one: means
    are then those over all of them, the peak the highest. ``p_above_cap``: the probability that its power, without the
    sensor's noise, is above the cap of a guided profile. ``memory_bytes``: the most memory that a step takes, with
    parameters, gradients and the optimizer's state; None where it is not known.
    """

    step_s: Positive | None = None
    step_std_s: NotNegative | None = None
    power_mean_w: Positive | None = None
    power_std_w: NotNegative | None = None
    power_peak_w: Positive | None = None
    steps: BatchSize | None = None
    out_of_memory: bool = False
    throttled: tuple[str, ...] = ()
    over_current: Samples | None = None
    swapped_bytes: NotNegative | None = None
    temperature_c: Number | None = None
    probes: BatchSize | None = None
    p_above_cap: Share | None = None
    memory_bytes: Positive | None = None

    @property
    def disturbed(self) -> bool:
        """Whether the board held itself back meanwhile, so that the figures are not those of the setting."""
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
    """A probe that was stopped at the first reading above the cap: it says no more than that."""

    cap_w: Positive
    power_w: Positive


class Confirmation(AtPoint):
    """A cell that was measured again, for longer, before a training relied on it: no more than that it was done."""

    cap_w: Positive
    power_w: Positive


class ReferencePower(Value):
    """Peak power of one reference workload at one clock: what a worst-case clock is chosen from.

    ``stopped``: the probe was stopped at this reading, the first above the cap, so the peak may be higher.
    """

    workload: str
    batch_size: BatchSize
    clock_mhz: Positive | None = None
    power_limit_w: Positive | None = None
    power_peak_w: Positive
    stopped: bool = False


class ProfileCost(Value):
    """What profiling cost on the device; ``above_cap_s`` counts against ``cap_w`` and nothing where that is None."""

    time_s: NotNegative
    energy_j: NotNegative
    above_cap_s: NotNegative
    probes: Samples
    cap_w: Positive | None = None


class ReferenceSet(Value):
    """Peak powers of the fixed set of reference workloads, and the version of that set.

    ``cost``: what measuring them took, once for a device; it is no part of the profile's own cost.
    """

    set_version: int
    powers: tuple[ReferencePower, ...]
    cost: ProfileCost | None = None


class ProfileKey(Value):
    """What a table depends on, and nothing else: never data values, weights or targets."""

    device: str
    mode: str
    model: str
    input_shape: str
    data_type: str
    optimizer: str
    algorithm: str
    software: str

    def differences(self, other: ProfileKey) -> list[str]:
        """One text a field that differs, such as ``data_type (fp32, not fp16)``."""
        mine, theirs = self.model_dump(), other.model_dump()
        return [f"{k} ({theirs[k]}, not {mine[k]})" for k in type(self).model_fields if mine[k] != theirs[k]]

    def is_stale(self, now: ProfileKey) -> bool:
        """Whether nothing but the board's mode and the software have changed: a few cells then tell whether a table
        still holds."""
        return self != now and self.model_copy(update={"mode": now.mode, "software": now.software}) == now


class Guidance(Value):
    """How a guided profile came to its end, and what it takes for the best of what it measured.

    ``samples_from``: where it knows from how many samples each batch size needs, an efficiency record or nothing but
    what is usual ("prior"). ``may_save``: share of the training's time that more probes were expected to save.
    """

    strict: bool
    samples_from: Literal["efficiency", "prior"]
    stopped_because: str
    may_save: NotNegative
    pick: OperatingPoint | None = None
    p_above_cap: Share | None = None


class Program(Value):
    """The program that was measured in place of a workload.

    ``command``: how it is called, with ``{batch_size}`` and perhaps ``{steps}`` in it; ``device``: the text that its
    device was opened by; ``step_time``: where its step times came from, lines that it printed, lines of a file, or two
    runs of different length.
    """

    command: str
    device: str
    step_time: Literal["printed", "file", "run lengths"]


class ProfileTable(Record):
    """Step time and power per (batch size, clock). A cell that was not measured is absent.

    ``supply`` is what lay between the terminals of the device's supply and its sensor; ``notes`` say what is to be
    known of the table. ``program``: what was measured, where that is no workload of wattune.
    """

    name = "profile"

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
    sensor_rail: str | None = None
    strategy: str | None = None
    guided: Guidance | None = None
    supply: Supply | None = None
    notes: tuple[str, ...] = ()
    program: Program | None = None

    @model_validator(mode="after")
    def _one_actuator(self) -> Self:
        found = {(cell.clock_mhz is not None, cell.power_limit_w is not None) for cell in self.measured}
        if len(found) > 1 or (True, True) in found:
            raise ValueError("one actuator: clock_mhz in every cell, or power_limit_w in every cell, or neither")
        return self

    @model_validator(mode="after")
    def _unique(self) -> Self:
        seen = set()
        for cell in self.cells:
            place = (
                cell.batch_size,
                cell.micro_batch_size or cell.batch_size,
                cell.clock_mhz,
                cell.power_limit_w,
            )
            if place in seen:
                raise ValueError(
                    f"each cell once, but batch size {place[0]} at {cell.point.setting} stands there twice"
                )
            seen.add(place)
        return self

    @property
    def measured(self) -> tuple[ProfileCell, ...]:
        """The cells with figures."""
        return tuple(cell for cell in self.cells if not cell.out_of_memory)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Batch sizes of the measured cells, ascending."""
        return tuple(sorted({cell.batch_size for cell in self.measured}))

    @property
    def settings(self) -> tuple[float, ...]:
        """Clocks (or power limits) of the measured cells, ascending; empty on a device without."""
        return tuple(sorted({s for cell in self.measured if (s := cell.point.setting) is not None}))
