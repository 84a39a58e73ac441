"""From learning curves to samples needed per batch size, relative to the largest one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, stdev, variance

from wattune.errors import RecordError, WorkloadError
from wattune.records import EfficiencyCurve, EfficiencyPoint, LearningCurve, provenance

BAND = 0.90
"""Probability that the band from ``low`` to ``high`` is made for."""

# 95 % quantiles of Student's t for 1 to 10 degrees of freedom; more by the expansion below.
# Source: Abramowitz and Stegun, Handbook of Mathematical Functions, table 26.10.
_T95 = (6.3138, 2.9200, 2.3534, 2.1318, 2.0150, 1.9432, 1.8946, 1.8595, 1.8331, 1.8125)


@dataclass(frozen=True)
class _Arm:
    """All runs of one batch size; ``needed`` holds a censored run's budget, which it needed at least."""

    batch_size: int
    needed: tuple[int, ...]
    reached: tuple[int, ...]
    grid_variance: float

    @property
    def censored(self) -> int:
        return len(self.needed) - len(self.reached)


def curve(runs: Sequence[LearningCurve], *, workload: str) -> EfficiencyCurve:
    """How many samples each batch size needs to the target, relative to the reference batch size.

    A run needs the samples up to the first evaluation at which it reached the target, as a training that stops
    there does: nothing is interpolated between evaluations. ``relative_samples`` is the mean over seeds, ``samples``,
    divided by that at the reference, the largest batch size with a run that reached the target. A run that ended before
    (censored) enters the mean with its budget, a lower bound, so the figures are that too: ``high`` is then None. At
    other batch sizes ``low`` is None where the reference has censored runs.

    The 90 % band is that of a difference of means of ln N by Student's t, with one variance pooled over the
    batch sizes, widened by what the spacing of the evaluations leaves open (a uniform distribution over one
    interval). It is None where no batch size has two runs that reached the target.

    Raises: RecordError where the runs do not belong together; WorkloadError where none reached the target.
    """
    _check(runs)
    arms = [_arm(b, [r for r in runs if r.batch_size == b]) for b in sorted({r.batch_size for r in runs})]
    reference = next((arm for arm in reversed(arms) if arm.reached), None)
    if reference is None:
        raise never_reached(runs)
    spread = _pooled(arms)
    points = []
    for arm in arms:
        relative = mean(arm.needed) / mean(reference.needed) if arm.reached else None
        low, high = _band(arm, reference, relative, spread)
        points.append(
            EfficiencyPoint(
                batch_size=arm.batch_size,
                relative_samples=relative,
                low=low,
                high=high,
                samples=mean(arm.needed) if arm.reached else None,
                samples_std=stdev(arm.reached) if len(arm.reached) > 1 else None,
                runs=len(arm.needed),
                censored=arm.censored,
            )
        )
    first = runs[0].provenance
    return EfficiencyCurve(
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
        found = {getattr(run, field) for run in runs}
        if len(found) > 1:
            raise RecordError(
                f"learning curves of different {field}s", value=", ".join(sorted(map(str, found))), allowed="one"
            )
    seen = [(run.batch_size, run.seed) for run in runs]
    if len(set(seen)) < len(seen):
        twice = next(pair for pair in seen if seen.count(pair) > 1)
        raise RecordError("a learning curve stands there twice", value=f"batch size {twice[0]}, seed {twice[1]}")


def _arm(batch_size: int, runs: Sequence[LearningCurve]) -> _Arm:
    reached = [run for run in runs if run.reached]
    return _Arm(
        batch_size=batch_size,
        needed=tuple(run.samples if run.reached else max(run.samples, run.budget_samples) for run in runs),
        reached=tuple(run.samples for run in reached),
        grid_variance=mean((interval(run) / run.samples) ** 2 / 12 for run in reached) if reached else 0.0,
    )


def interval(run: LearningCurve) -> int:
    """Samples between the last evaluation and the one before: the target was crossed somewhere in there."""
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
    """The 95 % quantile of Student's t, that is, the edge of the two-sided 90 % band.

    Source: Abramowitz and Stegun, 26.7.5 (Cornish-Fisher expansion) beyond ten degrees of freedom.
    """
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    z = NormalDist().inv_cdf((1 + BAND) / 2)
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )


def never_reached(runs: Sequence[LearningCurve]) -> WorkloadError:
    """What to say where no run reached the target."""
    metrics = [e.metric for run in runs for e in run.evaluations]
    seen = f"; the runs gave {min(metrics):.4g} to {max(metrics):.4g}" if metrics else ""
    diverged = sum(run.samples < run.budget_samples for run in runs)
    if diverged == len(runs):
        return WorkloadError(
            f"every run of {runs[0].workload} diverged: its loss or metric was no number any more",
            hint="use a smaller learning rate",
        )
    return WorkloadError(
        f"no run of {runs[0].workload} reached the target within {runs[0].budget_samples} samples{seen}",
        value=runs[0].target,
        hint="give a target within reach, or more budget_samples" + (f"; {diverged} diverged" if diverged else ""),
    )
