"""Targets set after training, by one rule for all data sets, and learning curves cut at them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from wattune.records import Evaluation, LearningCurve

WINDOW = 3
"""Evaluations in the trailing mean that has to reach the target, since single ones are noisy."""

SHARE = 0.9
"""Position of the target between the first evaluation and the level that every batch size reaches."""


def smoothed(curve: LearningCurve) -> LearningCurve:
    """The curve with the trailing mean of its metric."""
    metrics = [evaluation.metric for evaluation in curve.evaluations]
    means = [fmean(metrics[max(0, i + 1 - WINDOW) : i + 1]) for i in range(len(metrics))]
    evaluations = (
        Evaluation(samples=e.samples, metric=m, loss=e.loss) for e, m in zip(curve.evaluations, means, strict=True)
    )
    return curve.model_copy(update={"evaluations": tuple(evaluations)})


def target_of(curves: Sequence[LearningCurve], *, higher_is_better: bool = True) -> float:
    """``SHARE`` of the way from the mean first evaluation to the end of the batch size that ends worst."""
    start = fmean(curve.evaluations[0].metric for curve in curves)
    sizes = {curve.batch_size for curve in curves}
    ends = [fmean(c.evaluations[-1].metric for c in curves if c.batch_size == size) for size in sizes]
    end = min(ends) if higher_is_better else max(ends)
    return start + SHARE * (end - start)


def cut(curve: LearningCurve, target: float, *, higher_is_better: bool = True) -> LearningCurve:
    """The curve up to its first evaluation at the target, or the whole curve marked as not reached."""
    for count, evaluation in enumerate(curve.evaluations, start=1):
        if evaluation.metric >= target if higher_is_better else evaluation.metric <= target:
            evaluations = curve.evaluations[:count]
            return curve.model_copy(
                update={"target": target, "reached": True, "samples": evaluation.samples, "evaluations": evaluations}
            )
    return curve.model_copy(update={"target": target, "reached": False})
