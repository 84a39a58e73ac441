"""A proxy's target as a share of the way from its first metric to its plateau.

One run at the largest batch size trains to the end of the budget, and its best mean of three evaluations is the
plateau: what every batch size can reach. The runs of the estimate are read at lower levels as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from wattune.errors import WorkloadError
from wattune.proxy.sweep import Progress, kind_of_run, sweep
from wattune.records import LearningCurve, ProxyLevel, SampleEfficiency
from wattune.sample_efficiency.choice import observation_of
from wattune.sample_efficiency.posterior import fit

if TYPE_CHECKING:
    from wattune.workloads import Workload

LOWER = (0.5, 0.75)
"""Parts of the target's share at which the runs are read as well."""

WINDOW = 3
"""Evaluations in the mean whose best is the plateau."""


@dataclass(frozen=True)
class Plateau:
    """A proxy with a number as its target, and the metrics between which it lies."""

    proxy: Workload
    share: float
    first: float
    best: float

    def target(self, share: float) -> float:
        """The metric at a share of the way, to five digits: it is part of the runs' fingerprint."""
        return float(f"{self.first + share * (self.best - self.first):.5g}")


def find_plateau(
    proxy: Workload, folder: Path, *, algorithm: str, executor: str | None, progress: Progress | None
) -> Plateau:
    """Train the proxy to its plateau. The run is kept in ``folder``, as one of the runs of an estimate there.

    Raises: WorkloadError if the metric gets no better; as ``sweep``.
    """
    assert proxy.target_share is not None
    size, share = proxy.batch_sizes[-1], proxy.target_share
    if progress is not None:
        progress(0, 1, f"one run at batch size {size} to the end of its budget, for a target at {share:.0%} of the way")
    [run] = sweep(
        replace(proxy, target_share=None),
        batch_sizes=[size],
        seeds=[0],
        folder=folder / "plateau",
        algorithm=algorithm,
        executor=executor,
        progress=progress,
    )
    first, metrics = proxy.evaluate(proxy.model(0)), [one.metric for one in run.evaluations]
    means = (
        [fmean(metrics[at : at + WINDOW]) for at in range(max(1, len(metrics) + 1 - WINDOW))] if metrics else [first]
    )
    best = max(means) if proxy.metric.direction == "max" else min(means)
    if best == first or not proxy.metric.reached(best, first):
        raise WorkloadError(
            f"{proxy.metric.name} of the proxy {proxy.name} does not get better at batch size {size}",
            value=f"{first:.4g} before and {best:.4g} in training",
            hint="write its target as a number, or let budget_samples be larger",
        )
    found = Plateau(proxy, share, first, best)
    found = replace(found, proxy=replace(proxy, target=found.target(share)))
    kind, algorithm = kind_of_run(proxy, algorithm)
    kept = kind(found.proxy.fingerprint(), size, 0, algorithm, folder)
    if not kept.curve_path.exists():
        kept.save(found.proxy, **_outcome(_cut(run, found.proxy, found.proxy.target)))
    return found


def read_levels(
    record: SampleEfficiency, plateau: Plateau, folder: Path, progress: Progress | None
) -> SampleEfficiency:
    """Add the relative samples at lower levels, and warn once if they are outside the record's 90 % band."""
    fingerprint = plateau.proxy.fingerprint()
    runs = [LearningCurve.load(path) for path in sorted(folder.glob("b*-s*.json"))]
    runs = [run for run in runs if run.fingerprint == fingerprint]
    sizes = [point.batch_size for point in record.points]
    levels = []
    for share in (round(part * plateau.share, 4) for part in LOWER):
        target = plateau.target(share)
        seen = [observation_of(_cut(run, plateau.proxy, target)) for run in runs]
        curve = fit(seen, sizes, whole=record.whole_runs, ratio=record.parameter_ratio)
        relative = dict(zip(curve.batch_sizes, np.exp(curve.mean).tolist(), strict=True))
        levels.append(
            ProxyLevel(
                target_share=share,
                target=target,
                relative_samples={size: one for size, one in relative.items() if size not in curve.lost},
            )
        )
    record = record.model_copy(update={"target_share": plateau.share, "levels": tuple(levels)})
    if progress is not None and (text := differing(record)) is not None:
        progress(0, 0, f"warning: {text}")
    return record


def differing(record: SampleEfficiency) -> str | None:
    """Say where the relative samples at another level are farthest out of the record's 90 % band; None if nowhere."""
    apart: list[tuple[float, str]] = []
    for level in record.levels:
        for point in record.points:
            other = level.relative_samples.get(point.batch_size)
            if other is None or point.low is None or point.high is None or point.relative_samples is None:
                continue
            if not point.low <= other <= point.high:
                text = (
                    f"the level of the target matters: at batch size {point.batch_size} the proxy needs {other:.2f} "
                    f"times the samples of {record.reference_batch_size} to {level.target_share:.0%} of the way to its "
                    f"plateau, {point.relative_samples:.2f} times to {record.target_share:.0%}; if your own target is "
                    f'as early, write target = "{level.target_share:.0%}" in [proxy]'
                )
                apart.append((abs(np.log(other / point.relative_samples)), text))
    return max(apart)[1] if apart else None


def _cut(run: LearningCurve, proxy: Workload, target: float | None) -> LearningCurve:
    """The run up to its first evaluation at the target; as it is if there is none."""
    assert target is not None
    for count, one in enumerate(run.evaluations, start=1):
        if proxy.metric.reached(one.metric, target):
            return run.model_copy(
                update={"reached": True, "samples": one.samples, "evaluations": run.evaluations[:count]}
            )
    return run


def _outcome(run: LearningCurve) -> dict[str, Any]:
    names = ("metric", "reached", "samples", "budget_samples", "evaluations", "state_bytes")
    return {name: getattr(run, name) for name in names}
