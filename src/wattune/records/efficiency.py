"""Samples to target of each batch size."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import model_validator
from typing_extensions import Self

from wattune.errors import RecordError
from wattune.records.base import BatchSize, Flag, NotNegative, Number, Positive, Record, Samples, Share, Value, Whole

BAND_SD = 1.6449
"""Half-width of a 90 % band in standard deviations."""

EfficiencyStrategy = Literal["full", "pooled"]
"""Estimation strategy: every batch size by its own runs, or all batch sizes by a curve through a few runs."""


class EfficiencyPoint(Value):
    """Samples to target of one batch size, relative to the reference batch size.

    ``relative_samples`` is None if every run was censored (ended before the target); ``low`` and ``high`` are the 90 %
    band, None if unknown; ``samples`` is the mean over the runs, in which a censored run counts with its budget;
    ``samples_std`` is the standard deviation of the runs that reached the target. A pooled curve has all of these from
    the runs of all batch sizes, even if ``runs`` is 0.
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
        """Standard deviation of ln(relative samples), by the band; None if there is no band."""
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


class ProxyObservation(Value):
    """One run that the figures come from: ``samples`` to the target or, if it was not ``reached``, to its end.

    ``seed``: runs of one seed see the same samples. ``spacing``: standard deviation of ln(samples) that the distance
    between two evaluations leaves open. ``left_out``: the run is not in the figures, since other runs at its batch size
    need less than a third or more than three times as many samples: it has another recipe, or one of them diverged.
    """

    batch_size: BatchSize
    samples: Positive
    reached: Flag
    seed: Whole | None = None
    spacing: NotNegative = 0.0
    left_out: Flag = False


class ProxyLevel(Value):
    """Relative samples to an earlier target of the same runs, at a share of the way to the proxy's plateau."""

    target_share: Share
    target: Number
    relative_samples: dict[int, Positive]


class SampleEfficiency(Record):
    """Samples to the target per batch size, relative to the reference (largest) batch size.

    ``strategy``: "full", the mean over the runs of each batch size, or "pooled", a curve through all runs; None if the
    file does not have it. The following fields belong to a pooled curve and are None otherwise. ``covariance``: of
    ln(relative samples) on the target, in the order of the points; the reference's rows and columns are 0.
    ``runs_used``, ``censored``: numbers of runs, and of runs that ended before the target. ``misfit``: the runs do not
    follow a curve, and more are needed. ``stopped_because``: the reason why no further run was made. If the device's
    step times were known: ``best``, the batch size to choose; ``p_best``, each one's probability of being the best; and
    ``expected_regret``, the expected excess time of ``best`` over the best one (0.01: 1 %).

    ``critical_batch_size`` and ``critical_log_sd``: the batch size B at which a curve through all runs bends, with
    samples growing about as 1 + b / B, and the standard deviation of its logarithm; of either strategy. Both are None
    if unknown.

    ``observations``: the runs; empty if the file does not have them. ``whole_runs``: they are whole training runs, not
    those of a smaller proxy. ``parameter_ratio``: the target's number of parameters over the proxy's.
    ``own_batch_size``: the batch size that the user trains with today; another one is ``best`` only if it is faster
    with a probability of 0.9. ``p_faster``: that probability for the batch size that would otherwise be chosen;
    ``expected_gain``: the expected share of the time that it saves. Both are None without step times, and if that batch
    size is the user's own.

    ``target_share``: the share of the way to the proxy's plateau at which the target lies; None if it was given as a
    number. ``levels``: what the same runs say of earlier targets.
    """

    name = "efficiency"
    written_by = "wattune estimate"

    workload: str
    algorithm: str = "backprop"
    target: Number | None = None
    reference_batch_size: BatchSize
    points: tuple[EfficiencyPoint, ...]
    strategy: EfficiencyStrategy | None = None
    covariance: tuple[tuple[Number, ...], ...] | None = None
    runs_used: Samples | None = None
    censored: Samples | None = None
    misfit: Flag | None = None
    stopped_because: str | None = None
    best: BatchSize | None = None
    p_best: dict[int, NotNegative] | None = None
    expected_regret: NotNegative | None = None
    critical_batch_size: Positive | None = None
    critical_log_sd: NotNegative | None = None
    observations: tuple[ProxyObservation, ...] = ()
    whole_runs: Flag = False
    parameter_ratio: Positive = 1.0
    own_batch_size: BatchSize | None = None
    p_faster: Share | None = None
    expected_gain: Number | None = None
    target_share: Share | None = None
    levels: tuple[ProxyLevel, ...] = ()

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
        """The point of this batch size. Raises: RecordError if there is none."""
        for point in self.points:
            if point.batch_size == batch_size:
                return point
        raise RecordError(
            "the sample efficiency has no batch size",
            value=batch_size,
            allowed=", ".join(str(p.batch_size) for p in self.points),
            hint="estimate it with the profile's batch sizes",
        )

    @property
    def reference_samples(self) -> float | None:
        """Samples to target of the reference batch size, None if unknown."""
        return self.at(self.reference_batch_size).samples
