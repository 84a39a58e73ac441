"""Charts over batch sizes: samples to target, and time to target at the best clock under the cap."""

from __future__ import annotations

from collections.abc import Sequence

from wattune.records import Candidate, EfficiencyPoint, Plan, ProfileTable, SampleEfficiency
from wattune.reporting import phrases
from wattune.reporting.axes import Spec
from wattune.reporting.charts import axis, dots, line, spec
from wattune.reporting.page import Figure, plain


def samples_to_target(efficiency: SampleEfficiency) -> Figure:
    """Samples to target per batch size, relative to the reference batch size, with the 90 % band."""
    points = sorted(efficiency.points, key=lambda point: point.batch_size)
    reached = [point for point in points if point.relative_samples is not None]
    all_reached = [point for point in reached if not point.censored]
    some_reached = [point for point in reached if point.censored]
    censored = [point for point in points if point.relative_samples is None]
    x = [str(point.batch_size) for point in points]
    data = [
        *_band(x, [point.low for point in points], [point.high for point in points]),
        line(x, [point.relative_samples for point in points], "", "var(--second)", hoverinfo="skip"),
        _relative("every run reached the target", all_reached, "circle"),
    ]
    notes = []
    if some_reached:
        data.append(_relative("some runs did not reach it", some_reached, "circle-open"))
        notes.append("Open markers: some runs ended before the target.")
    if censored:
        data.append(
            dots(
                [str(point.batch_size) for point in censored],
                [0 for _ in censored],
                "no run reached the target",
                "var(--cap)",
                marker={"symbol": "x", "size": 9},
                text=[_hover(point) for point in censored],
                hovertemplate="%{text}<extra></extra>",
            )
        )
        sizes = ", ".join(str(point.batch_size) for point in censored)
        notes.append(f"Cross at 0: no run with batch size {sizes} reached the target, so its value is unknown.")
    reference = efficiency.reference_samples
    notes.insert(0, _band_note([point.low for point in points]))
    if reference is not None:
        notes.append(f"1 is {phrases.count(reference)} samples, at batch size {efficiency.reference_batch_size}.")
    figure = spec(
        data,
        axis("batch size", type="category", categoryorder="array", categoryarray=x, showgrid=False),
        axis(f"samples to target, relative to batch size {efficiency.reference_batch_size}", rangemode="tozero"),
    )
    origin = phrases.origin(efficiency=efficiency.provenance.kind)
    return Figure("samples-needed", "Samples to target", origin, figure, note=" ".join(filter(None, notes)))


def time_to_target(plan: Plan, profile: ProfileTable | None, efficiency: SampleEfficiency | None) -> Figure | None:
    """Predicted time to target of every batch size at its own best setting under the cap.

    In seconds if the plan has absolute samples, otherwise relative to the chosen point. None if no candidate has a
    predicted time.
    """
    best = best_settings(plan)
    if not best:
        return None
    is_absolute = all(candidate.predicted_s is not None for candidate in best.values())
    unit = 1.0 if is_absolute else (plan.relative_time or min(c.relative_time or 1.0 for c in best.values()))
    sizes = sorted({candidate.batch_size for candidate in plan.candidates})
    timed_sizes = [size for size in sizes if size in best]
    x = {size: f"{size}<br>{_short(best[size])}" if size in best else f"{size}<br>none" for size in sizes}
    value = {s: (c.predicted_s if is_absolute else (c.relative_time or 0.0) / unit) or 0.0 for s, c in best.items()}
    bands = {size: _share(efficiency, size) for size in timed_sizes}
    pick = [size for size in timed_sizes if size == plan.batch_size]
    data = [
        *_band(
            [x[s] for s in timed_sizes],
            [None if (b := bands[s]) is None else value[s] * b[0] for s in timed_sizes],
            [None if (b := bands[s]) is None else value[s] * b[1] for s in timed_sizes],
        ),
        line([x[s] for s in timed_sizes], [value[s] for s in timed_sizes], "", "var(--second)", hoverinfo="skip"),
    ]
    for sizes_shown, name, colour, size in (
        ([s for s in timed_sizes if s not in pick], "other batch sizes", "var(--second)", 9),
        (pick, "chosen", "var(--accent)", 13),
    ):
        data.append(
            dots(
                [x[s] for s in sizes_shown],
                [value[s] for s in sizes_shown],
                name,
                colour,
                marker={"size": size},
                text=[_predicted(best[s]) for s in sizes_shown],
                hovertemplate="%{text}<extra></extra>",
            )
        )
    order = [x[size] for size in sizes]
    figure = spec(
        data,
        axis(
            f"batch size, and its best {_actuator(plan)}",
            type="category",
            categoryorder="array",
            categoryarray=order,
            showgrid=False,
        ),
        axis(
            "predicted time to target (s)" if is_absolute else "predicted time (chosen point = 1)", rangemode="tozero"
        ),
    )
    # A batch size without a point has no trace, which would otherwise extend the axis.
    figure["layout"]["xaxis"]["range"] = [-0.5, len(order) - 0.5]
    notes = [
        "Steps only, with the proxy's samples to target. Green: chosen.",
        _band_note([None if b is None else b[0] for b in bands.values()]),
    ]
    if missing := [str(size) for size in sizes if size not in best]:
        limits = "the cap" if plan.memory_limit_bytes is None else "the cap and the memory limit"
        notes.append(
            f"No setting stays under {limits}, or no run reached the target, with batch size {', '.join(missing)}."
        )
    return Figure(
        "time-to-target",
        "Predicted time to target per batch size",
        predicted(plan, profile, efficiency),
        figure,
        note=" ".join(filter(None, notes)),
    )


def best_settings(plan: Plan) -> dict[int, Candidate]:
    """The fastest feasible candidate of every batch size, and the chosen one of its own."""
    best: dict[int, Candidate] = {}
    for candidate in plan.candidates:
        time = candidate.relative_time
        if not candidate.feasible or time is None:
            continue
        fastest = best.get(candidate.batch_size)
        if fastest is None or time < (fastest.relative_time or time):
            best[candidate.batch_size] = candidate
    # The plan's own choice settles ties, and may be slower where the goal is not the time.
    for candidate in plan.candidates:
        if candidate.point == plan.point and candidate.batch_size in best:
            best[candidate.batch_size] = candidate
    return best


def best_sample_s(plan: Plan, profile: ProfileTable) -> dict[int, float]:
    """Seconds per sample of every batch size at its best setting under the cap, from the profile."""
    cell_at = {cell.point: cell for cell in profile.measured}
    cells = {size: cell_at.get(candidate.point) for size, candidate in best_settings(plan).items()}
    return {size: cell.step_s / size for size, cell in cells.items() if cell is not None and cell.step_s is not None}


def predicted(plan: Plan, profile: ProfileTable | None, efficiency: SampleEfficiency | None) -> str:
    """The origin of a prediction: that of both its parts if their records are there, otherwise the plan's."""
    if profile is None and efficiency is None:
        return f"predicted, {phrases.origin(plan=plan.provenance.kind)}"
    steps = profile.provenance.kind if profile else plan.provenance.kind
    if efficiency is None:
        return f"predicted, {phrases.origin(step_times=steps)}"
    return f"predicted, {phrases.origin(step_times=steps, samples=efficiency.provenance.kind)}"


def _relative(name: str, points: Sequence[EfficiencyPoint], symbol: str) -> Spec:
    return dots(
        [str(point.batch_size) for point in points],
        [point.relative_samples for point in points],
        name,
        "var(--second)",
        marker={"symbol": symbol, "line": {"width": 2, "color": "var(--second)"}},
        text=[_hover(point) for point in points],
        hovertemplate="%{text}<extra></extra>",
    )


def _band(x: Sequence[str], low: Sequence[float | None], high: Sequence[float | None]) -> list[Spec]:
    """The area between two lines over a category axis, with gaps where limits are unknown; empty if all are."""
    bands: list[Spec] = []
    start = 0
    for end in range(len(x) + 1):
        if end < len(x) and low[end] is not None and high[end] is not None:
            continue
        if end > start:
            outline = [*x[start:end], *reversed(x[start:end])]
            values = [*high[start:end], *reversed(low[start:end])]
            area = line(outline, values, "90 % band", "var(--second)", line={"width": 8 if end - start == 1 else 0})
            bands.append({**area, "fill": "toself", "fillcolor": "var(--second)", "opacity": 0.2, "hoverinfo": "skip"})
        start = end + 1
    return bands


def _band_note(limits: Sequence[float | None]) -> str:
    if any(limit is not None for limit in limits):
        return "Band: 90 % interval of the relative samples."
    return "No band: the spread over runs is unknown."


def _share(efficiency: SampleEfficiency | None, batch_size: int) -> tuple[float, float] | None:
    """The band's limits divided by the middle value; None if the record has none."""
    for point in efficiency.points if efficiency else ():
        if point.batch_size == batch_size and point.relative_samples and point.low and point.high:
            return point.low / point.relative_samples, point.high / point.relative_samples
    return None


def _hover(point: EfficiencyPoint) -> str:
    reached = f"{point.runs - point.censored} of {point.runs} runs reached the target" if point.runs else "no runs"
    if point.relative_samples is None:
        return f"batch size {point.batch_size}<br>{reached}"
    band = "" if point.low is None or point.high is None else f" ({point.low:.3g} to {point.high:.3g})"
    samples = "" if point.samples is None else f"<br>{phrases.count(point.samples)} samples"
    return f"batch size {point.batch_size}<br>{point.relative_samples:.3g}{band}{samples}<br>{reached}"


def _predicted(candidate: Candidate) -> str:
    return plain(
        f"{candidate.point}\n{phrases.seconds(candidate.predicted_s)}"
        f", {phrases.joules(candidate.predicted_j)}"
        f", peak {phrases.watts(candidate.predicted_peak_w)}"
    ).replace("\n", "<br>")


def _short(candidate: Candidate) -> str:
    return phrases.knob_values(candidate.knobs)


def _actuator(plan: Plan) -> str:
    return phrases.knob_titles(plan.knobs) or "point"
