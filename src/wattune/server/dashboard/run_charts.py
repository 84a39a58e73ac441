"""Charts of one training run: power, clock or power limit, metric and temperature over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wattune.records import TrainingRecord
from wattune.reporting import phrases
from wattune.server.dashboard.line_chart import Chart, Line, Point

MOST_POINTS = 600
"""Maximum number of points of a line: a record holds up to megabytes of readings."""


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


def _thinned(points: Sequence[Point], pick: Callable[..., Point]) -> list[Point]:
    """At most ``MOST_POINTS`` points: of each stretch the one that ``pick`` (min or max) chooses by its value."""
    length = -(-len(points) // MOST_POINTS) or 1
    stretches = (points[start : start + length] for start in range(0, len(points), length))
    return [pick(stretch, key=lambda point: point[1]) for stretch in stretches]
