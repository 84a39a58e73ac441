"""Charts over batch sizes: samples to target, and time to target at the best clock under the cap."""

from __future__ import annotations

from collections.abc import Sequence

from wattune.records import Candidate, EfficiencyPoint, Plan, ProfileTable, SampleEfficiency
from wattune.reporting import phrases
from wattune.reporting.charts import Area, Axis, Chart, Dots, Line, Mark, Panel, Symbol, Values
from wattune.reporting.page import Figure


def samples_to_target(efficiency: SampleEfficiency) -> Figure:
    """Samples to target per batch size, relative to the reference batch size, with the 90 % band."""
    points = sorted(efficiency.points, key=lambda point: point.batch_size)
    reached = [point for point in points if point.relative_samples is not None]
    censored = [point for point in points if point.relative_samples is None]
    some_reached = [point for point in reached if point.censored]
    places = {point.batch_size: place for place, point in enumerate(points)}
    x, low = range(len(points)), [point.low for point in points]

    def dots(name: str, points: Sequence[EfficiencyPoint], colour: str, symbol: Symbol) -> Dots:
        x, y = [places[point.batch_size] for point in points], [point.relative_samples or 0.0 for point in points]
        return Dots(x, y, colour, name, symbol=symbol, hovers=[_hover(point) for point in points])

    marks: list[Mark] = [
        Area(x, low, [point.high for point in points], "var(--second)"),
        Line(x, [point.relative_samples for point in points], "var(--second)"),
        dots("every run reached the target", [one for one in reached if not one.censored], "var(--second)", "circle"),
    ]
    notes = [_band_note(low)]
    if some_reached:
        marks.append(dots("some runs did not reach it", some_reached, "var(--second)", "ring"))
        notes.append("Open markers: some runs ended before the target.")
    if censored:
        marks.append(dots("no run reached the target", censored, "var(--cap)", "cross"))
        sizes = ", ".join(str(point.batch_size) for point in censored)
        notes.append(f"Cross at 0: no run with batch size {sizes} reached the target, so its value is unknown.")
    if efficiency.reference_samples is not None:
        samples = phrases.count(efficiency.reference_samples)
        notes.append(f"1 is {samples} samples, at batch size {efficiency.reference_batch_size}.")
    title = f"samples to target, relative to batch size {efficiency.reference_batch_size}"
    batch_sizes = Axis("batch size", categories=[str(point.batch_size) for point in points])
    chart = Chart([Panel(marks, batch_sizes, Axis(title, from_zero=True))])
    origin = phrases.origin(efficiency=efficiency.provenance.kind)
    return Figure("samples-needed", "Samples to target", origin, chart, note=" ".join(notes))


def time_to_target(plan: Plan, profile: ProfileTable | None, efficiency: SampleEfficiency | None) -> Figure | None:
    """Predicted time to target of every batch size at its own best setting under the cap. None if no candidate has a
    predicted time."""
    best = {size: one for size, one in best_settings(plan).items() if one.predicted_s is not None}
    if not best:
        return None
    sizes = sorted({candidate.batch_size for candidate in plan.candidates})
    places = {size: place for place, size in enumerate(sizes) if size in best}
    value = {size: candidate.predicted_s or 0.0 for size, candidate in best.items()}

    def dots(sizes: Sequence[int], name: str, colour: str, diameter: float) -> Dots:
        x, y, hovers = [places[s] for s in sizes], [value[s] for s in sizes], [_predicted(best[s]) for s in sizes]
        return Dots(x, y, colour, name, diameter, hovers=hovers)

    x = list(places.values())
    marks: list[Mark] = [
        Line(x, [value[size] for size in places], "var(--second)"),
        dots([size for size in places if size != plan.batch_size], "other batch sizes", "var(--second)", 9),
        dots([size for size in places if size == plan.batch_size], "chosen", "var(--accent)", 13),
    ]
    settings = [phrases.knob_values(best[size].knobs) if size in best else "none" for size in sizes]
    categories = [f"{size}\n{setting}" for size, setting in zip(sizes, settings, strict=True)]
    actuator = phrases.knob_titles(plan.knobs) or "point"
    x_axis = Axis(f"batch size, and its best {actuator}", categories)
    panel = Panel(marks, x_axis, Axis("predicted time to target (s)", from_zero=True))
    notes = ["Steps only, with the proxy's samples to target. Green: chosen."]
    if missing := [str(size) for size in sizes if size not in best]:
        limits = "the cap" if plan.memory_limit_bytes is None else "the cap and the memory limit"
        notes.append(
            f"No setting stays under {limits}, or no run reached the target, with batch size {', '.join(missing)}."
        )
    return Figure(
        "time-to-target",
        "Predicted time to target per batch size",
        predicted(plan, profile, efficiency),
        Chart([panel]),
        note=" ".join(notes),
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


def predicted(plan: Plan, profile: ProfileTable | None, efficiency: SampleEfficiency | None) -> str:
    """The origin of a prediction: that of both its parts if their records are there, otherwise the plan's."""
    if profile is None and efficiency is None:
        return f"predicted, {phrases.origin(plan=plan.provenance.kind)}"
    steps = profile.provenance.kind if profile else plan.provenance.kind
    if efficiency is None:
        return f"predicted, {phrases.origin(step_times=steps)}"
    return f"predicted, {phrases.origin(step_times=steps, samples=efficiency.provenance.kind)}"


def _band_note(limits: Values) -> str:
    if any(limit is not None for limit in limits):
        return "Band: 90 % interval of the relative samples."
    return "No band: the spread over runs is unknown."


def _hover(point: EfficiencyPoint) -> str:
    reached = f"{point.runs - point.censored} of {point.runs} runs reached the target" if point.runs else "no runs"
    if point.relative_samples is None:
        return f"batch size {point.batch_size}\n{reached}"
    band = "" if point.low is None or point.high is None else f" ({point.low:.3g} to {point.high:.3g})"
    samples = "" if point.samples is None else f"\n{phrases.count(point.samples)} samples"
    return f"batch size {point.batch_size}\n{point.relative_samples:.3g}{band}{samples}\n{reached}"


def _predicted(candidate: Candidate) -> str:
    return (
        f"{candidate.point}\n{phrases.seconds(candidate.predicted_s)}"
        f", {phrases.joules(candidate.predicted_j)}"
        f", peak {phrases.watts(candidate.predicted_peak_w)}"
    )
