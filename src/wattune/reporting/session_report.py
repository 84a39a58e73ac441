"""The content of a report of one session: a training run in the user's own loop."""

from __future__ import annotations

from wattune.records import Plan, SessionRecord
from wattune.reporting import heat_maps, phrases, training_charts
from wattune.reporting.page import Figure, Note, Page, Section, Table, Tile


def compose_session(session: SessionRecord) -> Page:
    """Compose the report of a session: what it chose and measured, and what training took."""
    about = (type_of(session), session.device, session.mode)
    return Page(
        title=f"wattune: {type_of(session)}",
        origin=phrases.origin(session=session.provenance.kind),
        headline=_headline(session),
        about="  ·  ".join(part for part in about if part),
        warnings=[f"Ended: {session.ended}" + (f" ({session.reason})." if session.reason else ".")]
        if session.ended != "finished"
        else [],
        tiles=_tiles(session),
        sections=[_measured(session), _course(session), _remarks(session)],
    )


def type_of(session: SessionRecord) -> str:
    """Name of what was trained: the class of the model, if any point was measured."""
    return session.table.workload if session.table is not None else "training run"


def _headline(session: SessionRecord) -> str:
    under = phrases.under(session.cap_w, session.supply_cap_w)
    if session.gain is not None:
        how = "" if session.gain_from == "measured" else ", whose steps are a forecast"
        return f"{session.gain:.2f} times as fast as your own recipe{how}, {under}, search included"
    if session.point is None:
        return f"Training ended before the search for the best point did, {under}"
    where = str(session.point)
    number = 0 if session.table is None else len(session.table.measured)
    return f"{where[:1].upper()}{where[1:]} was chosen from {number} measured points while training, {under}"


def _tiles(session: SessionRecord) -> list[Tile]:
    above = "" if session.cap_w is None else f"cap {phrases.cap(session.cap_w)}, "
    above += "" if session.cap_w is None else f"{phrases.seconds(session.above_cap_s)} above it"
    return [
        Tile("Time", phrases.seconds(session.time_s), f"{phrases.count(session.steps)} steps"),
        Tile("Samples", phrases.count(session.samples), f"{session.passes} passes over the data"),
        Tile("Energy", phrases.joules(session.energy_j), f"mean power {phrases.watts(session.power_mean_w)}"),
        Tile("Peak power", phrases.watts(session.power_peak_w), above, session.above_cap_s > 0),
    ]


def _measured(session: SessionRecord) -> Section:
    intro = "Step time and power of the points that the session tried, by ordinary training steps."
    table = session.table
    if table is None or not table.measured:
        return Section("Time and power", "", [Note("Time and power", "No point was measured.")])
    chosen = None
    if session.point is not None:
        limits = {"cap_w": session.cap_w, "cap_window_s": session.cap_window_s, "margin_w": session.margin_w}
        chosen = Plan(**session.point.point.fields(), **limits)
    return Section("Time and power", intro, [heat_maps.time_map(table, chosen), heat_maps.power_map(table, chosen)])


def _course(session: SessionRecord) -> Section:
    items: list[Figure | Table | Note] = []
    ends_s = [*(change.time_s for change in session.changes[1:]), session.time_s]
    rows = [
        (
            phrases.seconds(change.time_s),
            phrases.seconds(max(0.0, end_s - change.time_s)),
            phrases.count(change.samples),
            str(change.point),
            change.why,
        )
        for change, end_s in zip(session.changes, ends_s, strict=bool(session.changes))
    ]
    origin = phrases.origin(session=session.provenance.kind)
    if rows:
        head = ("after", "for", "samples before", "point", "why")
        items.append(Table("Points that training ran at", origin, head, (True, True, True, False, False), rows))
    if session.board_events:
        items.append(training_charts.board_rows(session))
    if not items:
        items.append(Note("Points", "The session never changed its point."))
    return Section("Training", "", items)


def _remarks(session: SessionRecord) -> Section:
    recipe = session.recipe
    steps_s = session.compute_s + session.waiting_s + session.copying_s
    parts = (
        f"Of the steps' time, computing took {phrases.percent(session.compute_s / steps_s)}, waiting for data "
        f"{phrases.percent(session.waiting_s / steps_s)}, and copying {phrases.percent(session.copying_s / steps_s)}."
        if session.waiting_s or session.copying_s  # which not every loop tells apart
        else ""
    )
    notes = [
        Note("Recipe", f"Batch size {recipe.batch_size}, {recipe.learning_rate_rule}."),
        *([Note("Parts of a step", parts)] if parts else []),
        *([Note("Caveats", " ".join(session.notes))] if session.notes else []),
    ]
    return Section("About this session", "", notes)
