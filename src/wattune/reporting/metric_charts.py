"""Charts of the metric over samples and time: of the training run, and of the runs that samples were estimated from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from wattune.records import LearningCurve, TrainingRecord
from wattune.reporting import phrases
from wattune.reporting.charts import Axis, Chart, Dots, Line, Mark, Panel, Rule, batch_colour
from wattune.reporting.page import Figure

T = TypeVar("T")


def evaluations(training: TrainingRecord) -> Figure | None:
    """The metric of this run over time on the device, or over samples if no time is known. None without evaluations."""
    timed = [point for point in training.evaluations if point.time_s is not None]
    points = timed or training.evaluations
    if not points:
        return None
    x = [point.time_s or 0.0 if timed else point.samples for point in points]
    metric = [point.metric for point in points]
    hovers = [f"{point.metric:.4g} after {point.samples:,} samples" for point in points]
    marks: list[Mark] = [
        Line(x, metric, "var(--accent)", "this run"),
        Dots(x, metric, "var(--accent)", size=6, hovers=hovers),
    ]
    x_axis = Axis("time on the device (s)" if timed else "samples", from_zero=True)
    panel = Panel(marks, x_axis, Axis(phrases.metric(training.metric)), _target_rules(training.target))
    origin = phrases.origin(training=training.provenance.kind)
    return Figure("evaluations", "Metric during training", origin, Chart([panel]), height=280, wide=True)


def learning_curves(key: str, title: str, curves: Sequence[LearningCurve]) -> Figure:
    """The metric over samples, with one line per batch size and seed."""
    sizes = sorted({curve.batch_size for curve in curves})
    lines = [
        Line(
            [evaluation.samples for evaluation in curve.evaluations],
            [evaluation.metric for evaluation in curve.evaluations],
            batch_colour(sizes, curve.batch_size),
            f"batch size {curve.batch_size}",
            width=1.5,
            dash="solid" if curve.reached else "dotted",
        )
        for curve in sorted(curves, key=lambda curve: (curve.batch_size, curve.seed))
    ]
    y = Axis(phrases.metric(_common(curve.metric for curve in curves)))
    rules = _target_rules(_common(curve.target for curve in curves))
    chart = Chart([Panel(lines, Axis("samples", from_zero=True), y, rules)], legend=True)
    censored = sum(not curve.reached for curve in curves)
    note = f"Dotted: {censored} ended before the target." if censored else ""
    origin = phrases.origin(curves=_common(curve.provenance.kind for curve in curves))
    return Figure(key, title, origin, chart, note=note)


def _common(values: Iterable[T]) -> T | None:
    """Return the value if all are the same, else None."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _target_rules(target: float | None) -> list[Rule]:
    return [] if target is None else [Rule(target, f"target {target:g}", quiet=True)]
