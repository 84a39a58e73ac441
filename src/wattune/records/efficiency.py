"""How many samples each batch size needs, and the learning curves that say so."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import model_validator
from typing_extensions import Self

from wattune.errors import RecordError
from wattune.records.base import BatchSize, NotNegative, Number, Positive, Record, Samples, Value

BAND_SD = 1.6449
"""Standard deviations from the middle of a 90 % band to its ends."""

EfficiencyStrategy = Literal["full", "pooled"]
"""How the samples were estimated: every batch size by its own runs, or all from a few runs by a curve."""


class EfficiencyPoint(Value):
    """How many samples one batch size needs to reach the target, relative to the reference batch size.

    ``relative_samples`` is None where every run was censored (ended before the target); ``low`` and ``high`` are
    the 90 % band, None where unknown; ``samples`` is the mean over the runs, a run that
    ended before the target (censored) counting with its budget; ``samples_std`` that of those which reached it.
    A pooled curve has all of these from the runs of all batch sizes, and also where ``runs`` is 0.
    """

    batch_size: BatchSize
    relative_samples: Positive | None
    low: Positive | None = None
    high: Positive | None = None
    samples: Positive | None = None
    samples_std: NotNegative | None = None
    runs: Samples = 0
    censored: Samples = 0

    @property
    def log_sd(self) -> float | None:
        """Standard deviation of ln(relative samples), by the band; None where there is none."""
        if self.low is None or self.high is None:
            return None
        return math.log(self.high / self.low) / (2 * BAND_SD)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError("low at most high")
        if self.runs and self.censored > self.runs:
            raise ValueError("censored at most runs")
        return self


class FirstTenth(Value):
    """What the proxy runs say of the first tenth of the samples that a training is predicted to need.

    ``progress``: the share of the way to the target, from the metric after ``from_samples`` samples, that is made by
    then: the mean over ``runs`` trainings of the proxy. ``progress_low`` and ``progress_high`` are the band that holds
    90 % of trainings on the target, None for one run. ``noise_scale``: the gradient noise scale then, in samples, that
    belongs to the curve's critical batch size, with its 90 % band. What is not known is None.
    """

    from_samples: Samples | None = None
    progress: Number | None = None
    progress_low: Number | None = None
    progress_high: Number | None = None
    runs: Samples = 0
    noise_scale: Positive | None = None
    noise_scale_low: Positive | None = None
    noise_scale_high: Positive | None = None


class EfficiencyCurve(Record):
    """Samples to the target per batch size, relative to the reference (largest) batch size.

    ``strategy``: "full", the mean over the runs of each batch size, or "pooled", a curve through all runs; None where
    the file does not say. The rest is of a pooled curve, None elsewhere. ``covariance``: of ln(relative samples) on the
    target, in the order of the points, the reference's rows 0. ``runs_used``, ``censored``: how many runs there were,
    and how many of them ended before the target. ``misfit``: the runs do not follow a curve, and more are needed.
    ``stopped_because``: why no further run was made. Where the device's step times were known: ``best``, the batch size
    to take, ``p_best``, the probability of each to be the best, and ``expected_regret``, how much longer than the best
    one ``best`` is expected to take (0.01: 1 %).

    ``critical_batch_size`` and ``critical_log_sd``: the batch size B that bends a curve through all runs, samples
    growing as 1 + b / B or close to it, and the standard deviation of its logarithm; of either strategy. What a
    training is compared with on its way is ``first_tenth``. All are None where they are not known.
    """

    name = "efficiency"

    workload: str
    algorithm: str = "backprop"
    target: Number | None = None
    reference_batch_size: BatchSize
    points: tuple[EfficiencyPoint, ...]
    strategy: EfficiencyStrategy | None = None
    covariance: tuple[tuple[Number, ...], ...] | None = None
    runs_used: Samples | None = None
    censored: Samples | None = None
    misfit: bool | None = None
    stopped_because: str | None = None
    best: BatchSize | None = None
    p_best: dict[int, NotNegative] | None = None
    expected_regret: NotNegative | None = None
    critical_batch_size: Positive | None = None
    critical_log_sd: NotNegative | None = None
    first_tenth: FirstTenth | None = None

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
        rows = self.covariance
        if rows is not None and {len(rows), *(len(row) for row in rows)} != {len(sizes)}:
            raise ValueError("a covariance with one row and one column for each point")
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
