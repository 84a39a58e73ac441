"""Charts of the metric over samples and time: of the training run, and of the runs that samples were estimated from."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence

from wattune.records import Evaluation, LearningCurve, TrainingRecord
from wattune.reporting import phrases
from wattune.reporting.charts import Area, Axis, Chart, Dots, Line, Mark, Panel, Rule, batch_colour
from wattune.reporting.page import Figure


def evaluations(training: TrainingRecord) -> Figure | None:
    """The metric of this run over samples and over time on the device. None without evaluations."""
    points = training.evaluations
    if not points:
        return None
    timed_points = [point for point in points if point.time_s is not None]
    y, rules = Axis(phrases.metric(training.metric)), _target_rules(training.target)
    samples = _evaluated([point.samples for point in points], points, "{:,} samples")
    panels = [Panel(samples, Axis("samples", from_zero=True), y, rules, span=(0, 0.46 if timed_points else 1))]
    if timed_points:
        times = _evaluated([point.time_s or 0.0 for point in timed_points], timed_points, "{:.4g} s")
        panels.append(Panel(times, Axis("time on the device (s)", from_zero=True), rules=rules, span=(0.54, 1)))
    origin = phrases.origin(training=training.provenance.kind)
    return Figure("evaluations", "Metric during training", origin, Chart(panels), height=320, wide=True)


def _evaluated(x: Sequence[float], points: Sequence[Evaluation], form: str) -> list[Line | Dots]:
    """A line through the evaluations, with a marker at each; ``form``: how its text writes the value of x."""
    metric = [point.metric for point in points]
    hovers = [f"{value:.4g} after {form.format(place)}" for value, place in zip(metric, x, strict=True)]
    return [Line(x, metric, "var(--accent)", "this run"), Dots(x, metric, "var(--accent)", size=6, hovers=hovers)]


def learning_curves(key: str, title: str, curves: Sequence[LearningCurve]) -> Figure:
    """The metric over samples: for each batch size the mean over its seeds, and the band between its runs."""
    sizes, seeds = len({curve.batch_size for curve in curves}), len({curve.seed for curve in curves})
    note = f"{len(curves)} runs: {sizes} batch sizes, {seeds} {'seed' if seeds == 1 else 'seeds'}."
    if seeds > 1:
        note += (
            " Line: mean over the seeds; band: from the lowest to the highest. A run that ended keeps its last value."
        )
    chart = _means(curves, {curve.batch_size: 1.0 for curve in curves}, "samples")
    return Figure(key, title, phrases.origin(curves=_kind(curves)), chart, note=note)


def single_runs(key: str, title: str, curves: Sequence[LearningCurve]) -> Figure:
    """The metric over samples, with one line per batch size and seed; shown on demand."""
    censored = sum(not curve.reached for curve in curves)
    note = f"Dotted: {censored} ended before the target." if censored else ""
    chart = _runs(curves)
    return Figure(key, title, phrases.origin(curves=_kind(curves)), chart, note=note, wide=True, folded=True)


def timed_curves(
    key: str, title: str, curves: Sequence[LearningCurve], sample_s: Mapping[int, float], step_times: str | None
) -> Figure | None:
    """The metric over the predicted time of the samples at each batch size's best setting.

    ``sample_s``: batch size -> seconds per sample; ``step_times``: their origin. None if no batch size of the curves
    has a setting under the cap.
    """
    curves_on_device = [curve for curve in curves if curve.batch_size in sample_s]
    if not curves_on_device:
        return None
    origin = f"predicted, {phrases.origin(step_times=step_times, samples=_kind(curves))}"
    note = "Each batch size at its best setting under the cap; steps only, without evaluations."
    if missing := sorted({curve.batch_size for curve in curves} - sample_s.keys()):
        note += f" No such setting: batch size {', '.join(map(str, missing))}."
    return Figure(key, title, origin, _means(curves_on_device, sample_s, "time on the device (s)"), note=note)


def _means(curves: Sequence[LearningCurve], scale: Mapping[int, float], label: str) -> Chart:
    sizes = sorted({curve.batch_size for curve in curves})
    bands, means = list[Mark](), list[Mark]()
    for size in sizes:
        runs = [curve for curve in curves if curve.batch_size == size and curve.evaluations]
        places, values = _together(runs)
        x, colour = [place * scale[size] for place in places], batch_colour(sizes, size)
        if len(runs) > 1:
            low, high = [min(column) for column in values], [max(column) for column in values]
            bands.append(Area(x, low, high, colour, opacity=0.14))
        means.append(Line(x, [sum(column) / len(column) for column in values], colour, f"batch size {size}"))
    return _over(curves, [*bands, *means], label)


def _together(runs: Sequence[LearningCurve]) -> tuple[list[int], list[list[float]]]:
    """The numbers of samples at which any of the runs was evaluated, and the metric of each run then: that of its last
    evaluation so far. Before its first one a run is left out."""
    ends = [[one.samples for one in run.evaluations] for run in runs]
    places = sorted({samples for run in ends for samples in run})
    values = [
        [run.evaluations[done - 1].metric for run, own in zip(runs, ends, strict=True) if (done := bisect(own, place))]
        for place in places
    ]
    return places, values


def _runs(curves: Sequence[LearningCurve]) -> Chart:
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
    return _over(curves, lines, "samples")


def _over(curves: Sequence[LearningCurve], marks: Sequence[Mark], label: str) -> Chart:
    """The chart of these marks over an axis with this label, with the target of the curves."""
    targets, metrics = {curve.target for curve in curves}, {curve.metric for curve in curves}
    y = Axis(phrases.metric(metrics.pop() if len(metrics) == 1 else None))
    rules = _target_rules(targets.pop() if len(targets) == 1 else None)
    return Chart([Panel(marks, Axis(label, from_zero=True), y, rules)], legend=True)


def _kind(curves: Sequence[LearningCurve]) -> str | None:
    kinds = {curve.provenance.kind for curve in curves}
    return kinds.pop() if len(kinds) == 1 else None


def _target_rules(target: float | None) -> list[Rule]:
    return [] if target is None else [Rule(target, f"target {target:g}", quiet=True)]
