"""How many samples each batch size needs, and the learning curves that say so."""

from __future__ import annotations

from pydantic import model_validator
from typing_extensions import Self

from wattune.errors import RecordError
from wattune.records.base import BatchSize, NotNegative, Number, Positive, Record, Samples, Value


class EfficiencyPoint(Value):
    """How many samples one batch size needs to reach the target, relative to the reference batch size.

    ``relative_samples`` is None where every run was censored (ended before the target); ``low`` and ``high`` are
    the 90 % band, None where unknown; ``samples`` is the mean over the runs, a run that
    ended before the target (censored) counting with its budget; ``samples_std`` that of those which reached it.
    """

    batch_size: BatchSize
    relative_samples: Positive | None
    low: Positive | None = None
    high: Positive | None = None
    samples: Positive | None = None
    samples_std: NotNegative | None = None
    runs: Samples = 0
    censored: Samples = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError("low at most high")
        if self.runs and self.censored > self.runs:
            raise ValueError("censored at most runs")
        return self


class EfficiencyCurve(Record):
    """Samples to the target per batch size, relative to the reference (largest) batch size."""

    name = "efficiency"

    workload: str
    algorithm: str = "backprop"
    target: Number | None = None
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
