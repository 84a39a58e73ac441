"""Charts of a training run: power against the cap, and the metric over samples and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wattune.records import CapInterval, LearningCurve, Plan, TrainingRecord
from wattune.reporting import phrases
from wattune.reporting.axes import Spec
from wattune.reporting.charts import axis, band, batch_colour, dots, line, rule, spec
from wattune.reporting.page import Figure, Table

_GUARD_ACTIONS = {
    "down": ("clock down", "triangle-down", "var(--cap)"),
    "up": ("clock up", "triangle-up", "var(--accent)"),
    "at lowest": ("already at the lowest", "square", "var(--cap)"),
}


def power_trace(training: TrainingRecord) -> Figure | None:
    """Power readings with the cap and the guard's actions, above the clock. None without readings."""
    if not training.trace:
        return None
    times = [sample.time_s for sample in training.trace]
    settings = [sample.setting for sample in training.trace]
    names = tuple(training.plan.knobs) or ("clock_mhz",)
    name = names[0]
    knob = "limit" if name == "power_limit_w" else "clock"
    power = line(times, [s.power_w for s in training.trace], "power", "var(--second)", line={"width": 1.5})
    data = [{**power, "hovertemplate": "%{y:.2f} W<extra></extra>"}]
    for action, (label, symbol, colour) in _GUARD_ACTIONS.items():
        events = [event for event in training.guard if event.action == action]
        if events:
            label = label.replace("clock", knob)
            marks = dots(
                [event.time_s for event in events],
                [event.power_w for event in events],
                f"guard: {label}",
                colour,
                marker={"symbol": symbol, "size": 10, "line": {"color": "var(--card)", "width": 1}},
                text=[f" to {knobs}" if (knobs := event.setting_of(names)) else "" for event in events],
                hovertemplate="%{y:.2f} W at %{x:.4~g} s: " + label + "%{text}<extra></extra>",
            )
            data.append(marks)
    shapes: list[Spec] = []
    annotations: list[Spec] = []
    if any(one.cap_w for one in training.cap_intervals):
        data.append(_caps(training))
    elif training.plan.cap_w is not None:
        shape, label_ = rule(training.plan.cap_w, f"cap {phrases.cap(training.plan.cap_w)}")
        shapes, annotations = [shape], [label_]
    shapes += [band(begin_s, end_s) for one, begin_s, end_s in timed_intervals(training) if one.pause is not None]
    levels = sorted({setting for setting in settings if setting is not None})
    more: Spec = {}
    if levels:
        steps = line(times, settings, knob, "var(--quiet)", line={"shape": "hv", "width": 1.5}, yaxis="y2")
        data.append({**steps, "hovertemplate": "%{y:g}<extra></extra>", "showlegend": False})
        ticks = levels if len(levels) <= 3 else [levels[0], levels[-1]]
        space = 0.15 * (levels[-1] - levels[0]) or 0.1 * levels[0]
        extent = [levels[0] - space, levels[-1] + space]
        more["yaxis2"] = axis(phrases.KNOBS[name], domain=[0, 0.22], tickvals=ticks, range=extent)
    figure = spec(
        data,
        axis("time (s)", showgrid=False, anchor="y2" if levels else "y"),
        axis("board power (W)", domain=[0.32 if levels else 0, 1]),
        shapes=shapes,
        annotations=annotations,
        showlegend=bool(training.guard),
        **more,
    )
    origin = phrases.origin(training=training.provenance.kind)
    return Figure("power-trace", "Power during training", origin, figure, _trace_note(training), height=400, wide=True)


def timed_intervals(training: TrainingRecord) -> list[tuple[CapInterval, float, float]]:
    """The intervals of a cap that changes, each with the seconds of its beginning and its end."""
    intervals = training.cap_intervals
    ends_s = [*(one.time_s for one in intervals[1:]), training.time_s]
    return [(one, one.time_s, end_s) for one, end_s in zip(intervals, ends_s, strict=bool(intervals))]


def interval_rows(training: TrainingRecord) -> Table:
    """Table of the intervals of a cap that changes: the setting, or why nothing ran."""
    names = tuple(training.plan.knobs)
    rows = [
        (
            phrases.seconds(begin_s),
            phrases.seconds(end_s - begin_s),
            "no limit" if one.asked_w is None else phrases.cap(one.asked_w),
            "-" if one.pause is not None else str(one.setting_of(names)),
            phrases.joules(one.energy_j),
            phrases.seconds(one.above_cap_s),
            one.pause or "",
        )
        for one, begin_s, end_s in timed_intervals(training)
    ]
    head = ("after", "for", "cap", "setting", "energy", "above the cap", "why it paused")
    origin = phrases.origin(training=training.provenance.kind)
    return Table("Caps and pauses", origin, head, (True, True, True, True, True, True, False), rows, shown=10)


def times_to_train(plan: Plan) -> Figure | None:
    """The forecast of carbon or price, with the times that were chosen to train at; None without a schedule."""
    schedule = plan.schedule
    if schedule is None:
        return None
    hours = [one.time_s / 3600 for one in schedule.forecast]
    values = [one.value for one in schedule.forecast]
    end_s = max(schedule.finish_s, schedule.forecast[-1].time_s)
    name, unit = phrases.INTENSITIES[schedule.unit]
    curve = line([*hours, end_s / 3600], [*values, values[-1]], name, "var(--second)", line={"shape": "hv"})
    figure = spec(
        [{**curve, "hovertemplate": f"%{{y:.4g}} {unit}<extra></extra>"}],
        axis("hours from the beginning", showgrid=False),
        axis(f"{name} ({unit})", rangemode="tozero"),
        shapes=[
            band(one.from_s / 3600, (schedule.finish_s if one.until_s is None else one.until_s) / 3600, is_good=True)
            for one in schedule.times
        ],
    )
    note = "Shaded: training runs, as planned."
    return Figure("times", "Times to train at", phrases.origin(plan=plan.provenance.kind), figure, note=note, wide=True)


def _caps(training: TrainingRecord) -> Spec:
    """The limit at the sensor over time, as steps; a gap where nothing may run."""
    times, caps = [], list[float | None]()
    for one, begin_s, end_s in timed_intervals(training):
        times += [begin_s, end_s]
        caps += [one.cap_w, one.cap_w]
    steps = line(times, caps, "cap", "var(--cap)", line={"dash": "dash", "width": 1.5})
    return {**steps, "hovertemplate": "cap %{y:.2f} W<extra></extra>"}


def board_rows(training: TrainingRecord) -> Table:
    """Table of the board's events during training."""
    rows = [(phrases.seconds(event.time_s), event.kind, event.text) for event in training.board_events]
    origin = phrases.origin(training=training.provenance.kind)
    return Table("Board events", origin, ("after", "event", ""), (True, False, False), rows, shown=10)


def evaluations(training: TrainingRecord) -> Figure | None:
    """The metric of this run over samples and over time on the device. None without evaluations."""
    points = training.evaluations
    if not points:
        return None
    metric = [point.metric for point in points]
    origin = phrases.origin(training=training.provenance.kind)
    style: Spec = {"mode": "lines+markers", "marker": {"size": 6}}
    by_samples = line([point.samples for point in points], metric, "this run", "var(--accent)", **style)
    data = [{**by_samples, "hovertemplate": "%{y:.4g} after %{x:,} samples<extra></extra>"}]
    timed_points = [point for point in points if point.time_s is not None]
    more: Spec = {}
    if timed_points:
        by_time = line(
            [p.time_s for p in timed_points], [p.metric for p in timed_points], "this run", "var(--accent)", **style
        )
        data.append({**by_time, "xaxis": "x2", "hovertemplate": "%{y:.4g} after %{x:.4~g} s<extra></extra>"})
        more["xaxis2"] = axis("time on the device (s)", domain=[0.54, 1], rangemode="tozero")
    _add_target(more, training.target)
    figure = spec(
        data,
        axis("samples", domain=[0, 0.46 if timed_points else 1], rangemode="tozero"),
        axis(phrases.metric(training.metric)),
        **more,
    )
    title = "Metric during training"
    return Figure("evaluations", title, origin, figure, height=320, wide=True)


def learning_curves(key: str, title: str, curves: Sequence[LearningCurve]) -> Figure:
    """The metric over samples: for each batch size the mean over its seeds, and the band between its runs."""
    sizes, seeds = len({curve.batch_size for curve in curves}), len({curve.seed for curve in curves})
    note = f"{len(curves)} runs: {sizes} batch sizes, {seeds} {'seed' if seeds == 1 else 'seeds'}."
    if seeds > 1:
        note += (
            " Line: mean over the seeds; band: from the lowest to the highest. A run that ended keeps its last value."
        )
    figure = _means(curves, {curve.batch_size: 1.0 for curve in curves}, "samples", "samples")
    return Figure(key, title, phrases.origin(curves=_kind(curves)), figure, note=note)


def single_runs(key: str, title: str, curves: Sequence[LearningCurve]) -> Figure:
    """The metric over samples, with one line per batch size and seed; shown on demand."""
    censored = sum(not curve.reached for curve in curves)
    note = f"Dotted: {censored} ended before the target." if censored else ""
    figure = _runs(curves)
    return Figure(key, title, phrases.origin(curves=_kind(curves)), figure, note=note, wide=True, folded=True)


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
    return Figure(key, title, origin, _means(curves_on_device, sample_s, "time on the device (s)", "s"), note=note)


def _means(curves: Sequence[LearningCurve], scale: Mapping[int, float], label: str, unit: str) -> Spec:
    sizes = sorted({curve.batch_size for curve in curves})
    bands: list[Spec] = []
    means: list[Spec] = []
    for size in sizes:
        runs = [curve for curve in curves if curve.batch_size == size and curve.evaluations]
        places, values = _together(runs)
        x, colour = [place * scale[size] for place in places], batch_colour(sizes, size)
        if len(runs) > 1:
            outline = [*(max(column) for column in values), *(min(column) for column in reversed(values))]
            area = line([*x, *reversed(x)], outline, "", colour, line={"width": 0}, showlegend=False)
            bands.append({**area, "fill": "toself", "fillcolor": colour, "opacity": 0.14, "hoverinfo": "skip"})
        mean = [sum(column) / len(column) for column in values]
        hover = f"%{{y:.4g}} after %{{x:.5g}} {unit}<extra>batch size {size}</extra>"
        means.append(line(x, mean, f"batch size {size}", colour, hovertemplate=hover))
    return _over(curves, [*bands, *means], label)


def _together(runs: Sequence[LearningCurve]) -> tuple[list[int], list[list[float]]]:
    """The numbers of samples at which any of the runs was evaluated, and the metric of each run then: that of its last
    evaluation so far. Before its first one a run is left out."""
    places = sorted({one.samples for run in runs for one in run.evaluations})
    values = [
        [so_far[-1].metric for run in runs if (so_far := [e for e in run.evaluations if e.samples <= place])]
        for place in places
    ]
    return places, values


def _runs(curves: Sequence[LearningCurve]) -> Spec:
    sizes = sorted({curve.batch_size for curve in curves})
    data: list[Spec] = []
    for curve in sorted(curves, key=lambda curve: (curve.batch_size, curve.seed)):
        size = curve.batch_size
        name = f"batch size {size}"
        trace = line(
            [evaluation.samples for evaluation in curve.evaluations],
            [evaluation.metric for evaluation in curve.evaluations],
            name,
            batch_colour(sizes, size),
            showlegend=all(other["name"] != name for other in data),
            line={"width": 1.5, "dash": "solid" if curve.reached else "dot"},
        )
        data.append(trace)
    return _over(curves, data, "samples")


def _over(curves: Sequence[LearningCurve], data: list[Spec], label: str) -> Spec:
    """The figure of these traces over an axis with this label, with the target of the curves."""
    more: Spec = {}
    targets = {curve.target for curve in curves}
    _add_target(more, targets.pop() if len(targets) == 1 else None)
    metrics = {curve.metric for curve in curves}
    name = phrases.metric(metrics.pop() if len(metrics) == 1 else None)
    return spec(data, axis(label, rangemode="tozero"), axis(name), showlegend=True, **more)


def _kind(curves: Sequence[LearningCurve]) -> str | None:
    kinds = {curve.provenance.kind for curve in curves}
    return kinds.pop() if len(kinds) == 1 else None


def _add_target(layout: Spec, target: float | None) -> None:
    if target is None:
        return
    shape, label = rule(target, f"target {target:g}", left=True, colour="var(--quiet)")
    label["font"]["color"] = "var(--muted)"
    layout.update(shapes=[shape], annotations=[label])


def _trace_note(training: TrainingRecord) -> str:
    notes = []
    if training.readings is not None:
        note = f", {len(training.trace)} shown" if training.readings > len(training.trace) else ""
        notes.append(f"{training.readings:,} readings{note}.")
    if training.plan.cap_w is not None:
        above = training.readings_above_cap
        many = f" ({above} readings)" if above is not None else ""
        notes.append(f"{phrases.seconds(training.above_cap_s)} above the cap{many}.")
        if training.exact is not None:
            notes.append(f"Exactly {phrases.seconds(training.exact.above_cap_s)} in the simulation.")
        if not training.guard:
            notes.append("The guard never intervened.")
    if training.paused_s:
        notes.append(f"Shaded: it paused, for {phrases.seconds(training.paused_s)} in all.")
    if training.temperature_max_c is not None:
        limit = "" if training.max_temp_c is None else f", limit {training.max_temp_c:g} °C"
        notes.append(f"Highest temperature {training.temperature_max_c:.1f} °C{limit}.")
    return " ".join(notes)
