"""Charts of training runs over time: power, clock or power limit, temperature, and of one run its metric."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from wattune.records import TrainingRecord
from wattune.reporting import phrases
from wattune.server.dashboard.line_chart import COLOURS, Chart, Line, Point

MOST_POINTS = 600
"""Maximum number of points of a chart: a record holds up to megabytes of readings."""


def run_charts(run: TrainingRecord) -> tuple[list[Chart], dict[str, str]]:
    """Build the charts for which the record has data, and notes by title."""
    power: list[Point] = [(sample.time_s, sample.power_w) for sample in run.trace]
    knob = next(iter(run.plan.knobs), None)
    settings: list[Point] = [(s.time_s, s.setting) for s in run.trace if s.setting is not None] if knob else []
    metric: list[Point] = [(e.time_s, e.metric) for e in run.evaluations if e.time_s is not None]
    temperatures: list[Point] = [(e.time_s, e.temperature_c) for e in run.guard if e.temperature_c is not None]
    charts = [
        Chart("Power", "seconds", "watts", [Line("power", _thinned(power, max))], run.plan.cap_w, "cap"),
        Chart("Setting", "seconds", phrases.KNOBS[knob] if knob else "", [Line("setting", _thinned(settings, min))]),
        Chart("Metric", "seconds", phrases.metric(run.metric), [Line("metric", _thinned(metric, max))], run.target),
        Chart(
            "Temperature",
            "seconds",
            "°C",
            [Line("temperature", _thinned(temperatures, max), marks=True)],
            run.max_temp_c,
            "limit",
        ),
    ]
    notes = {"Temperature": "Recorded whenever the guard acts."}
    if len(power) > MOST_POINTS:
        notes["Power"] = "The highest reading of each stretch of time."
        notes["Setting"] = "The lowest setting of each stretch of time."
    return [chart for chart in charts if chart.lines[0].points], notes


def history_charts(runs: Sequence[TrainingRecord]) -> tuple[list[Chart], dict[str, str]]:
    """Build the charts of several runs one after another, oldest first, and notes by title.

    A reading has no date, only a time within its run, which on a simulated board is not that of a calendar. So the axis
    is the time of training, and the time between two runs is left out. Runs that set another knob than the newest one
    are not in the chart of the setting.
    """
    knob = next(iter(runs[-1].plan.knobs), None) if runs else None
    power, settings, temperatures = [], [], []
    offset_s, share = 0.0, MOST_POINTS // max(1, len(runs))
    for index, run in enumerate(runs):
        name, shade = f"run {index + 1}: {run.plan.point}", index % COLOURS
        watts: list[Point] = [(offset_s + sample.time_s, sample.power_w) for sample in run.trace]
        is_same = knob is not None and next(iter(run.plan.knobs), None) == knob
        set_to: list[Point] = [(offset_s + s.time_s, s.setting) for s in run.trace if s.setting is not None and is_same]
        warmth: list[Point] = [
            (offset_s + event.time_s, event.temperature_c) for event in run.guard if event.temperature_c is not None
        ]
        power.append(Line(name, _thinned(watts, max, share), shade))
        settings.append(Line(name, _thinned(set_to, min, share), shade))
        temperatures.append(Line(name, _thinned(warmth, max, share), shade, marks=True))
        offset_s += run.time_s
    caps_w = {run.plan.cap_w for run in runs}
    cap_w = caps_w.pop() if len(caps_w) == 1 else None
    axis = "seconds of training"
    charts = [
        Chart("Power", axis, "watts", power, cap_w, "cap"),
        Chart("Setting", axis, phrases.KNOBS[knob] if knob else "", settings),
        Chart("Temperature", axis, "°C", temperatures),
    ]
    notes = {"Temperature": "Recorded whenever the guard acts."}
    if any(len(run.trace) > share for run in runs):
        notes["Power"] = "The highest reading of each stretch of time."
        notes["Setting"] = "The lowest setting of each stretch of time."
    if caps_w:
        notes["Power"] = f"{notes.get('Power', '')} The runs had different caps.".strip()
    return [replace(chart, lines=lines) for chart in charts if (lines := [x for x in chart.lines if x.points])], notes


def _thinned(points: Sequence[Point], pick: Callable[..., Point], most: int = MOST_POINTS) -> list[Point]:
    """At most ``most`` points: of each stretch the one that ``pick`` (min or max) chooses by its value."""
    length = -(-len(points) // most) or 1
    stretches = (points[start : start + length] for start in range(0, len(points), length))
    return [pick(stretch, key=lambda point: point[1]) for stretch in stretches]
