"""Relative samples to target per batch size, from learning curves at each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev, variance

from scipy.special import stdtrit

from wattune.errors import RecordError, TargetNotReached
from wattune.records import EfficiencyPoint, LearningCurve, SampleEfficiency, provenance

BAND = 0.90
"""Probability that the band from ``low`` to ``high`` covers."""


@dataclass(frozen=True)
class _Arm:
    """All runs of one batch size; ``samples`` holds the budget of a censored run, a lower bound."""

    batch_size: int
    samples: tuple[int, ...]
    reached: tuple[int, ...]
    grid_variance: float

    @property
    def censored(self) -> int:
        return len(self.samples) - len(self.reached)


def curve(runs: Sequence[LearningCurve], *, workload: str) -> SampleEfficiency:
    """Relate the samples to target of each batch size to those of the reference batch size.

    A run needs the samples up to the first evaluation at which it reached the target, as a run that stops there does:
    nothing is interpolated between evaluations. ``samples`` is the mean over seeds; ``relative_samples`` is that mean
    divided by the reference's, the largest batch size with a run that reached the target. A run that ended before the
    target (censored) enters the mean with its budget, a lower bound, so the figures are lower bounds too: ``high`` is
    then None. If the reference has censored runs, ``low`` becomes None at the other batch sizes.

    The 90 % band is Student's t for a difference of means of ln N, with one variance pooled over the batch sizes,
    widened by the spacing of the evaluations (a uniform distribution over one interval). None unless some batch
    size has two runs that reached the target.

    Raises: RecordError if the runs do not belong together; TargetNotReached if none reached the target.
    """
    _check(runs)
    arms = [_arm(b, [r for r in runs if r.batch_size == b]) for b in sorted({r.batch_size for r in runs})]
    reference = next((arm for arm in reversed(arms) if arm.reached), None)
    if reference is None:
        raise never_reached(runs)
    spread = _pooled(arms)
    points = []
    for arm in arms:
        relative = mean(arm.samples) / mean(reference.samples) if arm.reached else None
        low, high = _band(arm, reference, relative, spread)
        points.append(
            EfficiencyPoint(
                batch_size=arm.batch_size,
                relative_samples=relative,
                low=low,
                high=high,
                samples=mean(arm.samples) if arm.reached else None,
                samples_std=stdev(arm.reached) if len(arm.reached) > 1 else None,
                runs=len(arm.samples),
                censored=arm.censored,
            )
        )
    first = runs[0].provenance
    return SampleEfficiency(
        workload=workload,
        algorithm=runs[0].algorithm,
        target=runs[0].target,
        reference_batch_size=reference.batch_size,
        points=tuple(points),
        strategy="full",
        provenance=provenance(first.kind or "measured", model=first.model, data=first.data),
    )


def _check(runs: Sequence[LearningCurve]) -> None:
    if not runs:
        raise RecordError("no learning curves", hint="run the proxy training first")
    for field in ("workload", "algorithm", "target", "fingerprint"):
        values = {getattr(run, field) for run in runs}
        if len(values) > 1:
            raise RecordError(
                f"learning curves of different {field}s", value=", ".join(sorted(map(str, values))), allowed="one"
            )
    pairs = [(run.batch_size, run.seed) for run in runs]
    if len(set(pairs)) < len(pairs):
        twice = next(pair for pair in pairs if pairs.count(pair) > 1)
        raise RecordError("duplicate learning curve", value=f"batch size {twice[0]}, seed {twice[1]}")


def _arm(batch_size: int, runs: Sequence[LearningCurve]) -> _Arm:
    reached = [run for run in runs if run.reached]
    return _Arm(
        batch_size=batch_size,
        samples=tuple(run.samples if run.reached else max(run.samples, run.budget_samples) for run in runs),
        reached=tuple(run.samples for run in reached),
        grid_variance=mean((last_interval(run) / run.samples) ** 2 / 12 for run in reached) if reached else 0.0,
    )


def last_interval(run: LearningCurve) -> int:
    """Samples between the last evaluation and the one before: a run crosses the target somewhere in between."""
    return run.samples - (run.evaluations[-2].samples if len(run.evaluations) > 1 else 0)


def _pooled(arms: Sequence[_Arm]) -> tuple[float, int] | None:
    """Variance of ln N within the batch sizes, and its degrees of freedom."""
    logs = [[math.log(n) for n in arm.reached] for arm in arms if len(arm.reached) > 1]
    degrees = sum(len(values) - 1 for values in logs)
    if not degrees:
        return None
    return sum(variance(values) * (len(values) - 1) for values in logs) / degrees, degrees


def _band(
    arm: _Arm, reference: _Arm, relative: float | None, spread: tuple[float, int] | None
) -> tuple[float | None, float | None]:
    if relative is None:
        return None, None
    if arm is reference:
        return 1.0, 1.0
    if spread is None:
        return None, None
    within, degrees = spread
    # The grid's part does not shrink with more seeds: they are all evaluated at the same samples.
    squared = sum(within / len(side.reached) + side.grid_variance for side in (arm, reference))
    factor = math.exp(t95(degrees) * math.sqrt(squared))
    return (
        None if reference.censored else relative / factor,
        None if arm.censored else relative * factor,
    )


def t95(degrees: int) -> float:
    """The 95 % quantile of Student's t, which is the edge of the two-sided 90 % band."""
    return float(stdtrit(degrees, (1 + BAND) / 2))


def never_reached(runs: Sequence[LearningCurve]) -> TargetNotReached:
    """The error to raise if no run reached the target."""
    name, budget, target = runs[0].workload, runs[0].budget_samples, runs[0].target
    diverged = sum(run.samples < run.budget_samples for run in runs)
    if diverged == len(runs):
        return TargetNotReached(
            f"every run of {name} diverged: the loss or metric became NaN or infinite; use a smaller learning rate"
        )
    metrics = [e.metric for run in runs for e in run.evaluations]
    extent = f"; they gave {min(metrics):.4g} to {max(metrics):.4g}" if metrics else ""
    also = f"; {diverged} diverged" if diverged else ""
    return TargetNotReached(
        f"no run of {name} reached the target {target:g} within {budget:,} samples{extent}{also}; "
        "set a target within reach, or let the training be longer (a workload's budget_samples)"
    )
