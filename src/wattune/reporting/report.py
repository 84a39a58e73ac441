"""Records to one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from wattune.files import write_bytes, write_new
from wattune.records import ComparisonRow, Plan, Record, TrainingRecord
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
from wattune.reporting.run_time import difference, evaluations
from wattune.reporting.session_report import compose_session

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


def compose(records: RecordSet) -> Page:
    """Compose the report's content, with a note in place of each missing record."""
    if records.session is not None:
        return compose_session(records.session)
    parts = (_profile, _batch_sizes, _choice, _training, _comparison, _sources)
    return Page(
        title=f"wattune: {_name(records)}",
        origin=_origin(records),
        headline=headline(records),
        about=_about(records),
        warnings=records.contradictions(),
        tiles=_tiles(records),
        sections=[part(records) for part in parts],
    )


def headline(records: RecordSet) -> str:
    """The main result in one sentence."""
    plan = records.chosen
    if plan is None:
        return f"{_name(records)}: no plan yet, so no batch size and clock are chosen"
    under = plan_text.under_cap_of(plan)
    where = str(plan.point)
    where = where[:1].upper() + where[1:]
    if not plan.goal.is_time:
        within = "".join(f", {text}" for text in filter(None, [plan_text.bound(plan.goal)]))
        return f"{where} is predicted to take the least {plan_text.LEAST[plan.goal.aim]}{within}, {under}"
    own = _row(records, phrases.OWN_RULE)
    trained = own is not None and own.point == plan.point
    rivals = {
        name: _row(records, rule) if trained else plan_text.baseline(plan, rule) for rule, name in _RIVALS.items()
    }
    gains = [f"{phrases.gain(row.speed_up)} {name}" for name, row in rivals.items() if row and row.speed_up is not None]
    if gains:
        return f"{where} {'trains' if trained else 'is predicted to train'} {' and '.join(gains)}, {under}"
    why = f"; {phrases.FIXED_CLOCK} is not feasible" if rivals[phrases.FIXED_CLOCK] else ""
    return f"{where} is predicted to reach the target soonest, {under}{why}"


_RIVALS = {phrases.OWN_CLOCK_RULE: phrases.OWN_CLOCK, phrases.FIXED_CLOCK_RULE: phrases.FIXED_CLOCK}
"""Rules that headlines compare with: the strongest one that anybody could follow, and the paper's baseline."""


def _tiles(records: RecordSet) -> list[Tile]:
    plan, training = records.chosen, records.training
    if plan is None:
        return []
    tiles = []
    for rule, name in _RIVALS.items():
        rival = _row(records, rule) or plan_text.baseline(plan, rule)
        if rival and rival.speed_up is not None:
            how = "predicted" if records.comparison is None else phrases.origin(c=records.comparison.provenance.kind)
            tiles.append(Tile("Speed-up", f"{rival.speed_up:.2f}×", f"over {name}, {how}"))
    if training is None:
        tiles.append(Tile("Time to target", phrases.seconds(plan.run_s), "predicted"))
        tiles.append(Tile("Energy", phrases.joules(plan.run_j), "predicted"))
        tiles.append(Tile("Peak power", phrases.watts(plan.predicted_peak_w), f"from the profile, {_against(plan)}"))
    else:
        tiles += _trained(plan, training)
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
    if profile is None:
        items.append(Note("Time and power", "There is no profile record, so step times and power are unknown."))
    elif not profile.measured:
        items.append(Note("Time and power", "The profile has no measured cells."))
    else:
        items += [heat_maps.time_map(profile, plan), heat_maps.power_map(profile, plan)]
    cost = (profile and profile.cost) or (plan and plan.profile_cost)
    if cost:
        text = run_text.profiling_cost(cost, plan, records.training)
        if profile and profile.reference and (once := profile.reference.cost):
            text += f" The reference workloads took another {phrases.seconds(once.time_s)}, once for the device."
        items.append(Note("Cost of profiling", text))
    return Section("Time and power", "Step time and power of every batch size at every setting of the device.", items)


def _batch_sizes(records: RecordSet) -> Section:
    plan, efficiency = records.chosen, records.efficiency
    items: list[Item] = []
    if efficiency is None:
        text = "There is no efficiency record, so the samples to target of each batch size are unknown."
        items.append(Note("Samples to target", text))
    else:
        items.append(batch_size_charts.samples_to_target(efficiency))
    time = plan and batch_size_charts.time_to_target(plan, records.profile, efficiency)
    items.append(time or Note("Time to target", "There is no plan record with predicted times."))
    for part in ("proxy", "target"):
        if curves := getattr(records, part):
            title = f"Learning curves on the {part}"
            items.append(metric_charts.learning_curves(f"{part}-curves", title, curves))
    intro = "A larger batch takes less time per sample but more samples to the target; their product is the time."
    return Section("Batch size", intro, items)


def _choice(records: RecordSet) -> Section:
    plan, items = records.chosen, list[Item]()
    title, intro = "The choice", "The point with the shortest predicted time to target that stays under the cap."
    if plan is not None and not plan.goal.is_time:
        intro = f"The point with the least predicted {plan_text.LEAST[plan.goal.aim]} that stays under the cap."
    if plan is not None and plan.memory_limit_bytes is not None:
        intro = f"{intro.rstrip('.')} and the memory limit of {phrases.memory(plan.memory_limit_bytes)}."
    if plan is None:
        return Section(title, "", [Note("Plan", "There is no plan record, so nothing has been chosen.")])
    if goal := [text for text in (plan_text.goal(plan), plan_text.trade_off(plan.front, plan.point)) if text]:
        items.append(Note("Time and energy", _sentences(goal)))
    if parts := evaluations(plan):
        items.append(Note("Evaluations", _sentences([parts])))
    if meaning := plan_text.cap_meaning(plan):
        items.append(Note("Power cap", meaning))
    if follows := run_text.moving_cap(plan, records.training):
        items.append(Note("Cap that changes", follows))
    if waits := run_text.schedule(plan, records.training):
        items.append(Note("Times to train at", _sentences([waits])))
    if confidence := [text for text in (plan_text.own_batch_size(plan), plan_text.confidence(plan)) if text]:
        items.append(Note("Confidence", _sentences(confidence)))
    if plan.notes:
        items.append(Note("Caveats", _sentences(plan.notes)))
    origin = batch_size_charts.predicted(plan, records.profile, records.efficiency)
    if plan.algorithm_cost is not None:
        items.append(Note("Cost of the training algorithm", _sentences([plan.algorithm_cost])))
    if plan.algorithms:
        items.append(rule_charts.algorithm_rows(plan, origin))
    if plan.baselines:
        items.append(rule_charts.baseline_rows(plan, origin))
    if plan.candidates:
        items.append(rule_charts.candidate_rows(plan, origin))
    elif not items:
        items.append(Note("Plan", "The plan record has nothing but the point."))
    return Section(title, intro, items)


def _sentences(texts: Iterable[str]) -> str:
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in texts)


def _training(records: RecordSet) -> Section:
    training, items = records.training, list[Item]()
    if training is None:
        items.append(Note("Training", "There is no training record."))
        return Section("Training", "", items)
    why = f" ({training.reason})" if training.reason else ""
    ended = (
        ""
        if training.ended is None
        else f"Ended: {training.ended}{why}, after {phrases.count(training.samples)} samples."
    )
    intro = f"{ended} {run_text.left_out(training)}".strip()
    items.append(training_charts.power_trace(training) or Note("Power", "The record has no power readings."))
    if why_longer := difference(records.chosen or training.plan, training):
        items.append(Note("Predicted and taken time", f"{why_longer}."))
    if training.cap_intervals:
        items.append(training_charts.interval_rows(training))
    if training.board_events:
        items.append(training_charts.board_rows(training))
    items.append(metric_charts.evaluations(training) or Note("Metric", "The record has no evaluations."))
    return Section("Training", intro, items)


def _comparison(records: RecordSet) -> Section:
    comparison, items = records.comparison, list[Item]()
    title, intro = "Comparison", "The pick of each rule, trained to the target on the target's data."
    if comparison is None:
        items.append(Note("Comparison", "There is no comparison record; the predictions are above."))
    else:
        items.append(rule_charts.bars(comparison) or Note("Comparison", "No rule's pick reached the target."))
        items.append(rule_charts.comparison_rows(comparison))
    return Section(title, intro if comparison else "", items)


def _sources(records: RecordSet) -> Section:
    rows = []
    for record in _all(records):
        about = record.provenance
        creation = (about.created_at or "-", about.software or "-", "-" if about.seed is None else str(about.seed))
        rows.append((record.name, phrases.origin(record=about.kind), about.device or "-", *creation))
    head = ("record", "origin", "device", "created", "software", "seed")
    table = Table("Records", _origin(records), head, (False,) * len(head), rows)
    return Section("Sources", "", [table])


def _all(records: RecordSet) -> list[Record]:
    members = (records.profile, records.efficiency, records.plan, records.training, records.comparison)
    return [record for record in members if record is not None]


def _origin(records: RecordSet) -> str:
    kinds = {record.name: record.provenance.kind for record in _all(records)}
    if not kinds:
        kinds = {"learning curves": (*records.proxy, *records.target)[0].provenance.kind}
    return phrases.grouped(kinds)


def _name(records: RecordSet) -> str:
    return _first(records, "workload") or "training run"


def _about(records: RecordSet) -> str:
    parts = (_first(records, "workload"), _first(records, "device"), _first(records, "algorithm"))
    return "  ·  ".join(part for part in parts if part)


def _first(records: RecordSet, field: str) -> str | None:
    holders = (records.profile, records.chosen, records.comparison, records.efficiency, *records.target, *records.proxy)
    values: Iterable[str | None] = (getattr(holder, field, None) for holder in holders)
    return next(filter(None, values), None)


def _row(records: RecordSet, rule: str) -> ComparisonRow | None:
    return next((row for row in records.comparison.rows if row.rule == rule), None) if records.comparison else None


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
