"""The work of a training step, and the operating point in its flat form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from wattune.point import KNOBS, BatchShape, Knobs, OperatingPoint
from wattune.records.base import BatchSize, NotNegative, Positive, Samples, Value


class Operation(Value):
    """Sum of all operations of one kind in one phase of a step.

    ``kind``: "matmul", "convolution", "depthwise", "normalisation", "elementwise", "reduction", "optimizer", "copy",
    "other".
    ``flops`` counts a multiply-add as two; ``bytes`` is what the operations read and write if nothing is fused;
    ``kernels`` is the number of launches.
    """

    kind: str
    flops: NotNegative
    bytes: NotNegative
    kernels: Samples


class PhaseWork(Value):
    """One phase of a step: "forward", "backward", "optimizer" or "host".

    ``host_s`` is CPU time (loading data) during which the accelerator waits.
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
        """Kernels that this phase launches."""
        return sum(o.kernels for o in self.operations)


class StepWork(Value):
    """Work of one training step (or one evaluation) for a device, which turns it into time and power.

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
        """Kernels that the whole step launches."""
        return sum(p.kernels for p in self.phases)


ADDED_KNOBS = frozenset({"memory_clock_mhz", "cpu_clock_mhz", "cpu_cores"})
"""Fields that were added within version 1: without a value they are not written."""


class KnobFields(Value):
    """The knobs of a device, flat; a knob that is None is not set by us.

    ``clock_mhz`` is the clock of the processor that trains. Knobs that were added within version 1 are not written if
    they are None.
    """

    unwritten: ClassVar[frozenset[str]] = ADDED_KNOBS
    """Fields that are left out of the JSON if they are None."""

    clock_mhz: Positive | None = None
    memory_clock_mhz: Positive | None = None
    cpu_clock_mhz: Positive | None = None
    cpu_cores: BatchSize | None = None
    power_limit_w: Positive | None = None

    @property
    def knobs(self) -> Knobs:
        """The knobs that are set."""
        return _knobs(*self._values())

    def _values(self) -> tuple[float | None, ...]:
        return self.clock_mhz, self.memory_clock_mhz, self.cpu_clock_mhz, self.cpu_cores, self.power_limit_w

    @model_serializer(mode="wrap")
    def _without_unset_knobs(self, fields_of: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = fields_of(self)
        return {name: value for name, value in fields.items() if value is not None or name not in self.unwritten}


class AtSetting(KnobFields):
    """Base of all that belongs to a setting of the device alone; a ``Knobs`` is taken as ``setting`` as well.

    ``setting`` is the value of the first knob, None if none is set. If there are several, their fields have them all.
    """

    unwritten = frozenset(KNOBS)

    setting: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _of_knobs(cls, data: object) -> object:
        if not isinstance(data, dict) or not isinstance(knobs := data.get("setting"), Mapping):
            return data
        return {**data, **(knobs if len(knobs) > 1 else {}), "setting": next(iter(knobs.values()), None)}

    def setting_of(self, names: Iterable[str]) -> Knobs:
        """The setting of a device whose knobs have these names."""
        return self.knobs or Knobs({name: self.setting for name in names if self.setting is not None})


@lru_cache(maxsize=4096)  # planning repeatedly reads the points of the same cells
def _knobs(*values: float | None) -> Knobs:
    return Knobs({name: value for name, value in zip(KNOBS, values, strict=True) if value is not None})


@lru_cache(maxsize=4096)
def _point(batch_size: int, micro_batch_size: int | None, *values: float | None) -> OperatingPoint:
    return OperatingPoint(BatchShape.of(batch_size, micro_batch_size), _knobs(*values))


class _Shape(Value):
    batch_size: BatchSize
    micro_batch_size: BatchSize | None = None


class AtPoint(KnobFields, _Shape):
    """Base of all that belongs to one point: batch size of the optimizer step and of the forward pass, and the knobs.

    ``micro_batch_size`` is None if it is the batch size.
    """

    @property
    def shape(self) -> BatchShape:
        """The batch size of the optimizer step, and that of the forward pass."""
        return self.point.shape

    @property
    def point(self) -> OperatingPoint:
        """The point alone."""
        return _point(self.batch_size, self.micro_batch_size, *self._values())


class PointRecord(AtPoint):
    """An operating point, nested in another record; an ``OperatingPoint`` is taken as well."""

    @model_validator(mode="before")
    @classmethod
    def _of_a_point(cls, data: object) -> object:
        return data.fields() if isinstance(data, OperatingPoint) else data

    def __str__(self) -> str:
        return str(self.point)


class _ShapeIfAny(Value):
    batch_size: BatchSize | None = None
    micro_batch_size: BatchSize | None = None


class AtPointIfAny(KnobFields, _ShapeIfAny):
    """Base of all that belongs to one point or to none; ``batch_size`` is None if there is none."""

    @property
    def point(self) -> OperatingPoint | None:
        """The point alone; None if there is none."""
        if self.batch_size is None:
            return None
        return _point(self.batch_size, self.micro_batch_size, *self._values())


def flat(point: OperatingPoint) -> dict[str, Any]:
    """All fields of a point as records have them, for ``model_copy``; None for those that it does not set."""
    return {**dict.fromkeys(AtPoint.model_fields), **point.fields()}
