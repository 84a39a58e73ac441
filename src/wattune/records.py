"""The records that travel between the parts: frozen, validated on the way in, JSON in and out.

Units stand in the field names: W, J, s, MHz, samples, bytes. Fields that this version does not know are kept;
an older ``version`` is read, a newer one is refused. ``save`` replaces a file in one step, so a record is either
the old one or the new one, never a half.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import Self

from wattune.errors import RecordError
from wattune.files import read_json, write_json
from wattune.version import __version__


def _number(value: object) -> object:
    # Other programs' files may say 4.0 for 4, but a text or a truth value is a mistake.
    if isinstance(value, (bool, str)):
        raise ValueError("a number")
    return value


Number = Annotated[float, BeforeValidator(_number)]
Positive = Annotated[float, BeforeValidator(_number), Field(gt=0)]
NotNegative = Annotated[float, BeforeValidator(_number), Field(ge=0)]
BatchSize = Annotated[int, BeforeValidator(_number), Field(ge=1)]
Samples = Annotated[int, BeforeValidator(_number), Field(ge=0)]
Kind = Literal["measured", "simulated", "recorded", "replayed"]


class Value(BaseModel):
    """Base of everything frozen in here; unknown fields are kept, NaN and infinity are refused."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)


# ---------------------------------------------------------------------------------------------- what a step asks for


class Operation(Value):
    """All operations of one kind in one phase of a step, added up.

    ``kind``: "matmul", "convolution", "depthwise", "normalisation", "elementwise", "reduction", "optimizer", "copy", ...
    ``flops`` counts a multiply-add as two; ``bytes`` is what the operations read and write if nothing is fused;
    ``kernels`` is how many were launched.
    """

    kind: str
    flops: NotNegative
    bytes: NotNegative
    kernels: Samples


class PhaseWork(Value):
    """One phase of a step: "forward", "backward", "optimizer" or "host".

    ``host_s`` is time of the CPU alone (loading data), during which the accelerator waits.
    """

    phase: str
    operations: tuple[Operation, ...] = ()
    host_s: NotNegative = 0.0

    @property
    def flops(self) -> float:
        """Floating-point operations of this phase."""
        return sum(o.flops for o in self.operations)

    @property
    def bytes(self) -> float:
        """Bytes that this phase reads and writes."""
        return sum(o.bytes for o in self.operations)

    @property
    def kernels(self) -> int:
        """Operations that this phase launches."""
        return sum(o.kernels for o in self.operations)


class StepWork(Value):
    """What one training step (or one evaluation) asks of a device; the device turns it into time and power.

    ``samples`` is the batch size of the optimizer step, ``micro_batch_size`` that of one forward pass.
    """

    samples: BatchSize
    micro_batch_size: BatchSize
    data_type: str
    phases: tuple[PhaseWork, ...]
    peak_memory_bytes: NotNegative

    @property
    def flops(self) -> float:
        """Floating-point operations of the whole step."""
        return sum(p.flops for p in self.phases)

    @property
    def bytes(self) -> float:
        """Bytes that the whole step reads and writes."""
        return sum(p.bytes for p in self.phases)

    @property
    def kernels(self) -> int:
        """Operations that the whole step launches."""
        return sum(p.kernels for p in self.phases)


class OperatingPoint(Value):
    """What the device and the training loop are set to.

    ``clock_mhz`` is None on a device without a clock; ``power_limit_w`` stands in its place where that is the actuator.
    """

    batch_size: BatchSize
    micro_batch_size: BatchSize | None = None
    clock_mhz: Positive | None = None
    power_limit_w: Positive | None = None

    @property
    def setting(self) -> float | None:
        """The value of whichever actuator the device has."""
        return self.clock_mhz if self.clock_mhz is not None else self.power_limit_w


# ------------------------------------------------------------------------------------------------------------ records


class Provenance(Value):
    """Where a record comes from. Free beyond ``kind``, which is None where a file from elsewhere does not say."""

    kind: Kind | None = None
    device: str | None = None
    model: str | None = None
    data: str | None = None
    software: str | None = None
    seed: int | None = None
    created_at: str | None = None


def provenance(kind: Kind, **fields: Any) -> Provenance:
    """A provenance with this version of wattune and the time of now filled in."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Provenance(**{"kind": kind, "software": f"wattune {__version__}", "created_at": now, **fields})


class Record(Value):
    """A value with a name and a version that is kept in a file of its own."""

    name: ClassVar[str]
    version_read: ClassVar[int] = 1

    version: int = 1
    provenance: Provenance = Provenance()

    @classmethod
    def parse(cls, data: object, *, source: str = "record") -> Self:
        """Validate ``data``, the content of a JSON file.

        Raises: RecordError with one line: the field, its value and what is allowed.
        """
        if not isinstance(data, dict):
            raise RecordError(f"{source} is not a {cls.name} record", value=type(data).__name__, allowed="a JSON object")
        found = data.get("record")
        if found != cls.name:
            raise RecordError(
                f"{source} is not a {cls.name} record, its field 'record' says", value=found, allowed=f'"{cls.name}"'
            )
        version = data.get("version", 1)
        if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= cls.version_read:
            raise RecordError(
                f"{source} has a version that this wattune does not read", value=version, allowed=f"1 to {cls.version_read}"
            )
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "the whole record"
            raise RecordError(
                f"{source}, field {place}", value=_shown(first.get("input")), allowed=first["msg"]
            ) from error

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a record from a JSON file. Raises: RecordError."""
        return cls.parse(read_json(path), source=str(path))

    def dump(self) -> dict[str, Any]:
        """The record as plain JSON values, ``record`` and ``version`` first."""
        return {"record": self.name, **self.model_dump(mode="json")}

    def save(self, path: str | Path) -> Path:
        """Write the record as JSON, replacing the file in one step. Raises: OutputError."""
        return write_json(path, self.dump())

    @model_validator(mode="before")
    @classmethod
    def _without_name(cls, data: object) -> object:
        # "record" is the class's name, not a field: it is written by `dump` and checked by `parse`.
        if not isinstance(data, dict):
            return data
        return {k: v for k, v in data.items() if k != "record" and (k, v) != ("provenance", None)}


class ProfileCell(Value):
    """One measured (batch size, clock). A cell that did not fit has ``out_of_memory`` and no figures.

    ``power_peak_w`` is the largest reading of the sensor; ``step_s`` the mean over ``steps`` steps.
    """

    batch_size: BatchSize
    micro_batch_size: BatchSize | None = None
    clock_mhz: Positive | None = None
    power_limit_w: Positive | None = None
    step_s: Positive | None = None
    step_std_s: NotNegative | None = None
    power_mean_w: Positive | None = None
    power_std_w: NotNegative | None = None
    power_peak_w: Positive | None = None
    steps: BatchSize | None = None
    out_of_memory: bool = False

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

    @property
    def point(self) -> OperatingPoint:
        """The batch sizes and the clock (or power limit) of this cell."""
        return OperatingPoint(
            batch_size=self.batch_size,
            micro_batch_size=self.micro_batch_size,
            clock_mhz=self.clock_mhz,
            power_limit_w=self.power_limit_w,
        )


class AbortedProbe(Value):
    """A probe that was stopped at the first reading above the cap: it says no more than that."""

    batch_size: BatchSize
    micro_batch_size: BatchSize | None = None
    clock_mhz: Positive | None = None
    power_limit_w: Positive | None = None
    cap_w: Positive
    power_w: Positive


class ReferencePower(Value):
    """Peak power of one reference workload at one clock: what a worst-case clock is chosen from."""

    workload: str
    batch_size: BatchSize
    clock_mhz: Positive | None = None
    power_limit_w: Positive | None = None
    power_peak_w: Positive


class ReferenceSet(Value):
    """Peak powers of the fixed set of reference workloads, and the version of that set."""

    set_version: int
    powers: tuple[ReferencePower, ...]


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


class ProfileCost(Value):
    """What profiling cost on the device."""

    time_s: NotNegative
    energy_j: NotNegative
    above_cap_s: NotNegative
    probes: Samples


class ProfileTable(Record):
    """Step time and power per (batch size, clock). A cell that was not measured is absent."""

    name = "profile"

    device: str
    workload: str
    algorithm: str = "backprop"
    cells: tuple[ProfileCell, ...]
    aborted: tuple[AbortedProbe, ...] = ()
    reference: ReferenceSet | None = None
    key: ProfileKey | None = None
    cost: ProfileCost | None = None
    sensor_window_s: NotNegative | None = None
    strategy: str | None = None

    @model_validator(mode="after")
    def _unique(self) -> Self:
        seen = set()
        for cell in self.cells:
            place = (cell.batch_size, cell.micro_batch_size or cell.batch_size, cell.clock_mhz, cell.power_limit_w)
            if place in seen:
                raise ValueError(f"each cell once, but batch size {place[0]} at {cell.point.setting} stands there twice")
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


class EfficiencyPoint(Value):
    """How many samples one batch size needs to reach the target, relative to the reference batch size.

    ``relative_samples`` is None where every run was censored (ended before the target); ``low`` and ``high`` are
    the 90 % band, None where unknown; ``samples`` is the mean over the runs that reached the target.
    """

    batch_size: BatchSize
    relative_samples: Positive | None
    low: Positive | None = None
    high: Positive | None = None
    samples: Positive | None = None
    samples_std: NotNegative | None = None
    runs: Samples = 0
    censored: Samples = 0


class EfficiencyCurve(Record):
    """Samples to the target per batch size, relative to the reference (largest) batch size."""

    name = "efficiency"

    workload: str
    algorithm: str = "backprop"
    target: float | None = None
    reference_batch_size: BatchSize
    points: tuple[EfficiencyPoint, ...]

    @model_validator(mode="after")
    def _reference(self) -> Self:
        sizes = [point.batch_size for point in self.points]
        if len(set(sizes)) != len(sizes):
            raise ValueError("each batch size once")
        if self.reference_batch_size not in sizes:
            raise ValueError(f"a point at the reference batch size {self.reference_batch_size}")
        reference = self.at(self.reference_batch_size)
        if reference.relative_samples is not None and abs(reference.relative_samples - 1) > 1e-6:
            raise ValueError("a relative_samples of 1 at the reference batch size")
        return self

    def at(self, batch_size: int) -> EfficiencyPoint:
        """The point of this batch size. Raises: RecordError where there is none."""
        for point in self.points:
            if point.batch_size == batch_size:
                return point
        raise RecordError(
            "the efficiency curve has no batch size",
            value=batch_size,
            allowed=", ".join(str(p.batch_size) for p in self.points),
            hint="estimate it with the profile's batch sizes",
        )

    @property
    def reference_samples(self) -> float | None:
        """Samples that the reference batch size needs, None where unknown."""
        return self.at(self.reference_batch_size).samples


class Candidate(Value):
    """One point that was considered. ``why_not`` is None for the chosen one."""

    batch_size: BatchSize
    micro_batch_size: BatchSize | None = None
    clock_mhz: Positive | None = None
    power_limit_w: Positive | None = None
    feasible: bool
    relative_time: Positive | None = None
    predicted_s: Positive | None = None
    predicted_j: Positive | None = None
    predicted_peak_w: Positive | None = None
    why_not: str | None = None

    @property
    def point(self) -> OperatingPoint:
        """The batch sizes and the clock (or power limit) of this candidate."""
        return OperatingPoint(
            batch_size=self.batch_size,
            micro_batch_size=self.micro_batch_size,
            clock_mhz=self.clock_mhz,
            power_limit_w=self.power_limit_w,
        )


class Baseline(Candidate):
    """What another rule would have chosen under the same cap.

    ``rule``: one of ``wattune.planning.RULES``; ``speed_up`` is its predicted time over the plan's.
    """

    rule: str
    speed_up: Positive | None = None


class CapGain(Value):
    """The pick under one cap, and the largest-batch and best-batch rules' predicted time over the pick's.

    ``feasible`` is False where no measured point keeps the cap; a rule that has no point there is None.
    """

    cap_w: Positive
    feasible: bool
    batch_size: BatchSize | None = None
    micro_batch_size: BatchSize | None = None
    clock_mhz: Positive | None = None
    power_limit_w: Positive | None = None
    relative_time: Positive | None = None
    over_largest_batch: Positive | None = None
    over_best_batch: Positive | None = None


class Plan(Record):
    """The chosen point, what it was compared with, and what it is predicted to take.

    Selection is by ``step_s / batch_size * relative_samples`` among the points whose peak power plus ``margin_w``
    is at most ``cap_w``. ``predicted_s`` is that times the samples of the reference batch size, None where unknown.
    """

    name = "plan"

    batch_size: BatchSize
    micro_batch_size: BatchSize | None = None
    clock_mhz: Positive | None = None
    power_limit_w: Positive | None = None
    cap_w: Positive | None = None
    margin_w: NotNegative = 0.0
    relative_time: Positive | None = None
    predicted_s: Positive | None = None
    predicted_j: Positive | None = None
    predicted_peak_w: Positive | None = None
    candidates: tuple[Candidate, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    gain_over_caps: tuple[CapGain, ...] = ()
    device: str | None = None
    workload: str | None = None
    algorithm: str = "backprop"
    target: float | None = None
    key: ProfileKey | None = None
    profile_cost: ProfileCost | None = None
    sensor_window_s: NotNegative | None = None

    @property
    def point(self) -> OperatingPoint:
        """The chosen batch sizes and clock (or power limit)."""
        return OperatingPoint(
            batch_size=self.batch_size,
            micro_batch_size=self.micro_batch_size,
            clock_mhz=self.clock_mhz,
            power_limit_w=self.power_limit_w,
        )


class Evaluation(Value):
    """The metric after so many samples, and what had been spent by then."""

    samples: Samples
    metric: float
    time_s: NotNegative | None = None
    energy_j: NotNegative | None = None
    loss: float | None = None


class GuardEvent(Value):
    """One answer of the cap guard: at ``time_s`` a reading of ``power_w`` led to the clock (or power limit) ``setting``."""

    time_s: NotNegative
    power_w: Positive
    action: Literal["down", "up", "at lowest"]
    setting: Positive | None = None


class PowerSample(Value):
    """A reading of the meter."""

    time_s: NotNegative
    power_w: Positive
    setting: Positive | None = None


class ExactFigures(Value):
    """What a simulated board really used, beside what its meter said."""

    energy_j: NotNegative
    above_cap_s: NotNegative
    time_s: NotNegative


Ending = Literal["target reached", "budget used up", "interrupted", "stopped for safety"]


class TrainingRecord(Record):
    """One training: the plan, each evaluation, what it took and how it ended.

    Time and energy are of the whole training on the device: first steps, evaluations and checkpoints count.
    """

    name = "training"

    plan: Plan
    reached: bool
    ended: Ending | None = None
    samples: Samples
    time_s: NotNegative
    energy_j: NotNegative
    power_mean_w: NotNegative | None = None
    power_peak_w: NotNegative
    above_cap_s: NotNegative
    readings: Samples | None = None
    readings_above_cap: Samples | None = None
    evaluations: tuple[Evaluation, ...] = ()
    guard: tuple[GuardEvent, ...] = ()
    trace: tuple[PowerSample, ...] = ()
    exact: ExactFigures | None = None
    profiling_share: NotNegative | None = None
    pays_after_trainings: NotNegative | None = None


class LearningCurve(Record):
    """One training without a device: the metric at each evaluation, until the target or the end of the budget."""

    name = "curve"

    workload: str
    algorithm: str = "backprop"
    batch_size: BatchSize
    seed: int
    target: float | None = None
    reached: bool
    samples: Samples
    budget_samples: Samples
    evaluations: tuple[Evaluation, ...] = ()
    fingerprint: str | None = None


class ComparisonRow(Value):
    """One rule's pick, trained to the target over seeds: mean and standard deviation of time and energy.

    ``censored`` of ``runs`` seeds did not reach the target; where any did not, the means are None.
    ``speed_up`` is this rule's time over that of wattune's pick; ``above_fastest`` its distance from the fastest.
    """

    rule: str
    batch_size: BatchSize | None = None
    micro_batch_size: BatchSize | None = None
    clock_mhz: Positive | None = None
    power_limit_w: Positive | None = None
    runs: Samples = 0
    censored: Samples = 0
    time_s: Positive | None = None
    time_std_s: NotNegative | None = None
    energy_j: Positive | None = None
    energy_std_j: NotNegative | None = None
    power_peak_w: Positive | None = None
    speed_up: Positive | None = None
    above_fastest: float | None = None
    why_not: str | None = None


class Comparison(Record):
    """Every rule's pick for one cap, trained on the target's own data. ``method`` says how it was priced."""

    name = "comparison"

    device: str
    workload: str
    cap_w: Positive | None = None
    seeds: tuple[int, ...]
    method: str
    rows: tuple[ComparisonRow, ...]


def _shown(value: object) -> object:
    # A whole record in an error line helps nobody.
    return f"{type(value).__name__} with {len(value)} entries" if isinstance(value, (dict, list, tuple)) else value
