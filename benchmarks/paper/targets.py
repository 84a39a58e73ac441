"""Targets set after training, by one rule for all data sets, and learning curves cut at them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from wattune.records import Evaluation, LearningCurve

WINDOW_SAMPLES = 512
"""Samples before an evaluation whose mean metric has to reach the target, since single evaluations are noisy."""

SHARE = 0.9
"""Position of the target between the first evaluation and the level that every batch size reaches."""


def smoothed(curve: LearningCurve) -> LearningCurve:
    """The curve with the trailing mean of its metric, over the same number of samples at every batch size."""
    evaluations = []
    for one in curve.evaluations:
        window = [e.metric for e in curve.evaluations if one.samples - WINDOW_SAMPLES < e.samples <= one.samples]
        evaluations.append(one.model_copy(update={"metric": fmean(window)}))
    return curve.model_copy(update={"evaluations": tuple(evaluations)})


def target_of(curves: Sequence[LearningCurve], *, higher_is_better: bool = True) -> float:
    """``SHARE`` of the way from the mean first evaluation to the end of the batch size that ends worst."""
    start = fmean(curve.evaluations[0].metric for curve in curves)
    sizes = {curve.batch_size for curve in curves}
    ends = [fmean(c.evaluations[-1].metric for c in curves if c.batch_size == size) for size in sizes]
    end = min(ends) if higher_is_better else max(ends)
    return start + SHARE * (end - start)


def cut(curve: LearningCurve, target: float, *, higher_is_better: bool = True) -> LearningCurve:
    """The curve up to its first evaluation at the target, or the whole curve marked as not reached.

    Its samples are interpolated between that evaluation and the one before.
    """
    before: Evaluation | None = None
    for count, one in enumerate(curve.evaluations, start=1):
        if one.metric >= target if higher_is_better else one.metric <= target:
            samples = one.samples
            if before is not None:
                way = (target - before.metric) / (one.metric - before.metric)
                samples = round(before.samples + way * (one.samples - before.samples))
            evaluations = curve.evaluations[:count]
            return curve.model_copy(
                update={"target": target, "reached": True, "samples": samples, "evaluations": evaluations}
            )
        before = one
    return curve.model_copy(update={"target": target, "reached": False})
