"""Charts and tables of a training run: power against the cap, pauses, and the board's events."""

from __future__ import annotations

from collections.abc import Sequence

from wattune.records import CapInterval, GuardEvent, SessionRecord, TrainingRecord
from wattune.reporting import phrases
from wattune.reporting.charts import Axis, Band, Chart, Dots, Line, Mark, Panel, Rule, Symbol
from wattune.reporting.page import Figure, Table

_GUARD_ACTIONS: dict[str, tuple[str, Symbol, str]] = {
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
    marks: list[Mark] = [Line(times, [s.power_w for s in training.trace], "var(--second)", "power", width=1.5)]
    for action, (label, symbol, colour) in _GUARD_ACTIONS.items():
        events = [event for event in training.guard if event.action == action]
        if events:
            label = label.replace("clock", knob)
            marks.append(
                Dots(
                    [event.time_s for event in events],
                    [event.power_w for event in events],
                    colour,
                    f"guard: {label}",
                    size=10,
                    symbol=symbol,
                    hovers=[_guard_hover(event, label, names) for event in events],
                )
            )
    rules = []
    if any(one.cap_w for one in training.cap_intervals):
        marks.append(_caps(training))
    elif training.plan.cap_w is not None:
        rules.append(Rule(training.plan.cap_w, f"cap {phrases.cap(training.plan.cap_w)}"))
    bands = [Band(begin_s, end_s) for one, begin_s, end_s in timed_intervals(training) if one.pause is not None]
    levels = sorted({setting for setting in settings if setting is not None})
    span = (0.32, 1.0) if levels else (0.0, 1.0)
    panels = [Panel(marks, Axis("time (s)", grid=False), Axis("board power (W)"), rules, bands, span)]
    if levels:
        ticks = levels if len(levels) <= 3 else [levels[0], levels[-1]]
        space = 0.15 * (levels[-1] - levels[0]) or 0.1 * levels[0]
        y = Axis(phrases.KNOBS[name], ticks=ticks, range=(levels[0] - space, levels[-1] + space))
        steps = Line(times, settings, "var(--quiet)", knob, width=1.5, stairs=True)
        panels.append(Panel([steps], y=y, span=(0, 0.22)))
    chart = Chart(panels, stacked=True, legend=bool(training.guard))
    origin = phrases.origin(training=training.provenance.kind)
    return Figure("power-trace", "Power during training", origin, chart, _trace_note(training), height=340, wide=True)


def timed_intervals(training: TrainingRecord) -> list[tuple[CapInterval, float, float]]:
    """The intervals of a cap that changes, each with the seconds of its beginning and its end."""
    intervals = training.cap_intervals
    ends_s = [*(one.time_s for one in intervals[1:]), training.time_s]
    return [(one, one.time_s, end_s) for one, end_s in zip(intervals, ends_s, strict=bool(intervals))]


def interval_rows(training: TrainingRecord) -> Table:
    """Table of the intervals of a cap that changes: the setting, or a remark why nothing ran."""
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
    head = ("after", "for", "cap", "setting", "energy", "above the cap", "")
    origin = phrases.origin(training=training.provenance.kind)
    return Table("Caps and pauses", origin, head, (True, True, True, True, True, True, False), rows, shown=10)


def _guard_hover(event: GuardEvent, label: str, names: Sequence[str]) -> str:
    knobs = event.setting_of(names)
    return f"{event.power_w:.2f} W at {event.time_s:.4g} s: {label}" + (f" to {knobs}" if knobs else "")


def _caps(training: TrainingRecord) -> Line:
    """The limit at the sensor over time, as steps; a gap where nothing may run."""
    times, caps = [], list[float | None]()
    for one, begin_s, end_s in timed_intervals(training):
        times += [begin_s, end_s]
        caps += [one.cap_w, one.cap_w]
    return Line(times, caps, "var(--cap)", "cap", width=1.5, dash="dashed")


def board_rows(record: TrainingRecord | SessionRecord) -> Table:
    """Table of the board's events during training; what the record leaves out comes first, since rows are cut."""
    events = sorted(record.board_events, key=lambda event: event.kind != "left out")
    rows = [(phrases.seconds(event.time_s), event.kind, event.text) for event in events]
    origin = phrases.origin(training=record.provenance.kind)
    return Table("Board events", origin, ("after", "event", ""), (True, False, False), rows, shown=10)


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
    if training.temperature_max_c is not None and training.max_temp_c is None:
        notes.append(f"Highest temperature {training.temperature_max_c:.1f} °C.")
    return " ".join(notes)
