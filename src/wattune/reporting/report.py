"""Records to one self-contained HTML file, and to a summary for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from wattune.files import write_bytes, write_new
from wattune.records import Baseline, ComparisonRow, Plan, TrainingRecord
from wattune.reporting import (
    batch_size_charts,
    heat_maps,
    metric_charts,
    phrases,
    plan_text,
    rule_charts,
    run_text,
    training_charts,
)
from wattune.reporting.page import Figure, Note, Page, Section, Table, Tile, render
from wattune.reporting.record_set import RecordSet, Source, gather
from wattune.reporting.session_report import compose_session
from wattune.reporting.text import as_text

Item = Figure | Table | Note


def write_report(sources: Source | Iterable[Source], path: str | Path, *, replace: bool = True) -> Path:
    """Write a report of any records: a run's folder, JSON files, records in memory, or a mixture.

    The file is self-contained, without scripts, and refers to nothing outside it. Every figure states whether its
    values were simulated, recorded or measured. Without ``replace``, a file at the path stays, and the report gets the
    first free name beside it. Returns the path.

    Raises: RecordError if a source cannot be read or there is no record; OutputError if ``path`` cannot be written.
    """
    write = write_bytes if replace else write_new
    return write(path, render(compose(gather(sources))).encode())


def summary(*sources: Source) -> str:
    """Write the report's headline, figures, notes and tables as text for a terminal; the charts are left out.

    Raises: RecordError as ``write_report``.
    """
    return as_text(compose(gather(sources)))


def compose(records: RecordSet) -> Page:
    """Compose the report's content; what there is no record of is left out."""
    if records.session is not None:
        return compose_session(records.session)
    sections = [part(records) for part in (_comparison, _profile, _batch_sizes, _choice, _training)]
    return Page(
        title=f"wattune: {_name(records)}",
        origin=phrases.grouped({record.name: record.provenance.kind for record in records.all}),
        headline=headline(records),
        about=_about(records),
        warnings=records.contradictions(),
        tiles=_tiles(records),
        sections=[section for section in sections if section.items],
    )


def headline(records: RecordSet) -> str:
    """The main result in one sentence."""
    plan, own = records.chosen, _row(records, phrases.OWN_RULE)
    point = plan.point if plan is not None else own and own.point
    if point is None:
        return f"{_name(records)}: no plan yet, so no batch size and clock are chosen"
    where = f"{point}"[:1].upper() + f"{point}"[1:]
    under = _under(records)
    if plan is not None and not plan.goal.is_time:
        within = ", ".join(filter(None, [plan_text.LEAST[plan.goal.aim], plan_text.bound(plan.goal)]))
        return f"{where} is predicted to take the least {within}, {under}"
    trained = own is not None and own.point == point
    rivals = {name: _row(records, rule) if trained else _baseline(plan, rule) for rule, name in _RIVALS.items()}
    gains = [f"{phrases.gain(row.speed_up)} {name}" for name, row in rivals.items() if row and row.speed_up is not None]
    if gains:
        return f"{where} {'trains' if trained else 'is predicted to train'} {' and '.join(gains)}, {under}"
    why = f"; {phrases.FIXED_CLOCK} is not feasible" if rivals[phrases.FIXED_CLOCK] else ""
    return f"{where} is predicted to reach the target soonest, {under}{why}"


_RIVALS = {phrases.OWN_CLOCK_RULE: phrases.OWN_CLOCK, phrases.FIXED_CLOCK_RULE: phrases.FIXED_CLOCK}
"""Rules that headlines compare with: the strongest one that anybody could follow, and the paper's baseline."""


def _tiles(records: RecordSet) -> list[Tile]:
    plan, training = records.chosen, records.training
    tiles = []
    for rule, name in _RIVALS.items():
        rival = _row(records, rule) or _baseline(plan, rule)
        if rival and rival.speed_up is not None:
            how = "predicted" if records.comparison is None else phrases.origin(c=records.comparison.provenance.kind)
            tiles.append(Tile("Speed-up", f"{rival.speed_up:.2f}×", f"over {name}, {how}"))
    if plan is None:
        return tiles
    if training is None:
        tiles.append(Tile("Time to target", phrases.seconds(plan.run_s), "predicted"))
        tiles.append(Tile("Energy", phrases.joules(plan.run_j), "predicted"))
        tiles.append(Tile("Peak power", phrases.watts(plan.predicted_peak_w), f"from the profile, {_against(plan)}"))
    else:
        tiles += _trained(plan, training)
    if plan.memory_limit_bytes is not None:
        limit = f"of the {phrases.memory(plan.memory_limit_bytes)} allowed"
        tiles.append(Tile("Memory", phrases.memory(plan.predicted_memory_bytes), limit))
    cost = plan.profile_cost or (records.profile.cost if records.profile else None)
    if cost:
        share = training.profiling_share if training else None
        beside = f"{phrases.multiple(share)} this run" if share is not None else f"{cost.probes} probes"
        tiles.append(Tile("Profiling", phrases.seconds(cost.time_s), beside))
    return tiles


def _trained(plan: Plan, training: TrainingRecord) -> list[Tile]:
    ending = "Time to target" if training.reached else "Target not reached"
    above = f", {phrases.seconds(training.above_cap_s)} above it" if plan.cap_w is not None else ""
    power_w = training.power_window_w or training.power_peak_w
    return [
        Tile(
            ending,
            phrases.seconds(training.time_s),
            _predicted(phrases.seconds(plan.run_s)),
            not training.reached,
        ),
        Tile("Energy", phrases.joules(training.energy_j), _predicted(phrases.joules(plan.run_j))),
        Tile(
            phrases.capped_power(plan.cap_window_s if training.power_window_w else None).capitalize(),
            phrases.watts(power_w),
            _against(plan) + above,
            training.exceeds_cap,
        ),
    ]


def _profile(records: RecordSet) -> Section:
    profile, plan = records.profile, records.chosen
    items: list[Item] = []
    if profile is not None and profile.measured:
        items = [heat_maps.time_map(profile, plan), heat_maps.power_map(profile, plan)]
    cost = (profile and profile.cost) or (plan and plan.profile_cost)
    if cost:
        text = run_text.profiling_cost(cost, plan, records.training)
        if profile and profile.reference and (once := profile.reference.cost):
            text += f" The reference workloads took another {phrases.seconds(once.time_s)}, once for the device."
        items.append(Note("Cost of profiling", text))
    return Section("Time and power", "Step time and power of every batch size at every setting of the device.", items)


def _batch_sizes(records: RecordSet) -> Section:
    plan, efficiency = records.chosen, records.efficiency
    items: list[Item] = [] if efficiency is None else [batch_size_charts.samples_to_target(efficiency)]
    if plan is not None and (time := batch_size_charts.time_to_target(plan, records.profile, efficiency)):
        items.append(time)
    intro = "A larger batch takes less time per sample but more samples to the target; their product is the time."
    return Section("Batch size", intro, items)


def _choice(records: RecordSet) -> Section:
    plan, items = records.chosen, list[Item]()
    if plan is None:
        return Section("The choice", "", [])
    least = "" if plan.goal.is_time else f"least predicted {plan_text.LEAST[plan.goal.aim]}"
    intro = f"The point with the {least or 'shortest predicted time to target'} that stays under the cap"
    if plan.memory_limit_bytes is not None:
        intro += f" and the memory limit of {phrases.memory(plan.memory_limit_bytes)}"
    notes = {
        "Time and energy": [plan_text.goal(plan), plan_text.trade_off(plan.front, plan.point)],
        "Evaluations": [plan_text.evaluations(plan)],
        "Power cap": [plan_text.cap_meaning(plan)],
        "Cap that changes": [run_text.moving_cap(plan, records.training)],
        "Times to train at": [run_text.schedule(plan, records.training)],
        "Confidence": [plan_text.own_batch_size(plan), plan_text.confidence(plan)],
        "Caveats": plan.notes,
        "Cost of the training algorithm": [plan.algorithm_cost],
    }
    items += _notes(notes)
    origin = batch_size_charts.predicted(plan, records.profile, records.efficiency)
    if plan.algorithms:
        items.append(rule_charts.algorithm_rows(plan, origin))
    if plan.baselines and records.comparison is None:
        items.append(rule_charts.baseline_rows(plan, origin))
    return Section("The choice", f"{intro}.", items)


def _notes(notes: Mapping[str, Iterable[str | None]]) -> Iterator[Note]:
    """A note for each title with texts, each text a sentence."""
    for title, texts in notes.items():
        if some := [f"{text[:1].upper()}{text[1:]}".rstrip(".") for text in texts if text]:
            yield Note(title, " ".join(f"{text}." for text in some))


def _training(records: RecordSet) -> Section:
    training, items = records.training, list[Item]()
    if training is None:
        return Section("Training", "", items)
    if trace := training_charts.power_trace(training):
        items.append(trace)
    outcome = [run_text.ending(training), run_text.left_out(training), run_text.too_short(training)]
    items += _notes({"Outcome": outcome})
    if training.cap_intervals:
        items.append(training_charts.interval_rows(training))
    if training.board_events:
        items.append(training_charts.board_rows(training))
    if metric := metric_charts.evaluations(training):
        items.append(metric)
    return Section("Training", "", items)


def _comparison(records: RecordSet) -> Section:
    comparison, items = records.comparison, list[Item]()
    if comparison is not None:
        if chart := rule_charts.bars(comparison):
            items.append(chart)
        items.append(rule_charts.comparison_rows(comparison))
    return Section("Comparison", "The pick of each rule, trained to the target on the target's data.", items)


def _name(records: RecordSet) -> str:
    return _first(records, "workload") or "training run"


def _about(records: RecordSet) -> str:
    parts = (_first(records, "workload"), _first(records, "device"), _first(records, "algorithm"))
    return "  ·  ".join(part for part in parts if part)


def _first(records: RecordSet, field: str) -> str | None:
    holders = (records.profile, records.chosen, records.comparison, records.efficiency)
    values: Iterable[str | None] = (getattr(holder, field, None) for holder in holders)
    return next(filter(None, values), None)


def _row(records: RecordSet, rule: str) -> ComparisonRow | None:
    return next((row for row in records.comparison.rows if row.rule == rule), None) if records.comparison else None


def _baseline(plan: Plan | None, rule: str) -> Baseline | None:
    return None if plan is None else plan_text.baseline(plan, rule)


def _under(records: RecordSet) -> str:
    """The cap in a sentence: that of the plan, else of the comparison."""
    if records.chosen is not None:
        return plan_text.under_cap_of(records.chosen)
    assert records.comparison is not None
    return phrases.under(records.comparison.cap_w, records.comparison.supply_cap_w)


def _against(plan: Plan) -> str:
    if plan.cap_w is None:
        return phrases.cap(plan.cap_w)
    return (
        f"cap {phrases.cap(plan.cap_w)}"
        if plan.supply_cap_w is None
        else f"cap {phrases.watts(plan.cap_w)} at the sensor"
    )


def _predicted(text: str) -> str:
    return "" if text == "-" else f"predicted {text}"
