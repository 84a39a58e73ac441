"""Records to one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from wattune.files import write_bytes
from wattune.records import ComparisonRow, LearningCurve, Plan, Record, TrainingRecord
from wattune.reporting import batches, caps, comparing, maps, trainings, words
from wattune.reporting.gathering import Records, Source, gather
from wattune.reporting.page import Figure, Note, Page, Section, Table, Tile, render

Item = Figure | Table | Note


def write_report(sources: Source | Iterable[Source], path: str | Path) -> Path:
    """Write a report of whichever records there are: a run's folder, JSON files, records in memory, or a mixture.

    The file holds everything that it needs, plotly.js included, and no reference to anything outside it. Its figures
    are the records' own; each says whether they were simulated, recorded or measured.

    Raises: RecordError where a source cannot be read or there is no record; OutputError where ``path`` cannot be
    written.
    """
    return write_bytes(path, render(compose(gather(sources))).encode())


def compose(records: Records) -> Page:
    """The report's content: what stands where, and a sentence where a record is missing."""
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


def headline(records: Records) -> str:
    """The one sentence that a report is read for."""
    plan = records.chosen
    if plan is None:
        return f"{_name(records)}: no plan yet, so no batch size and clock are chosen"
    under = words.under(plan.cap_w, plan.supply_cap_w)
    where = words.point(plan.point)
    where = where[:1].upper() + where[1:]
    own, rival = (_row(records, rule) for rule in (words.OWN_RULE, words.FIXED_CLOCK_RULE))
    if own and rival and rival.speed_up is not None and words.place(own) == plan.point:
        return f"{where} trains {words.gain(rival.speed_up)} {words.FIXED_CLOCK}, {under}"
    predicted = words.baseline(plan)
    if predicted is None:
        return f"{where} is predicted to reach the target soonest, {under}"
    if predicted.speed_up is None:
        return f"{where} is predicted to reach the target soonest, {under}; {words.FIXED_CLOCK} cannot train there"
    return f"{where} is predicted to train {words.gain(predicted.speed_up)} {words.FIXED_CLOCK}, {under}"


def _tiles(records: Records) -> list[Tile]:
    plan, training = records.chosen, records.training
    if plan is None:
        return []
    tiles = []
    rival = _row(records, words.FIXED_CLOCK_RULE) or words.baseline(plan)
    if rival and rival.speed_up is not None:
        how = "predicted" if records.comparison is None else words.origin(c=records.comparison.provenance.kind)
        tiles.append(
            Tile("Against the fixed clock", f"{rival.speed_up:.2f}×", f"the speed of {words.FIXED_CLOCK}, {how}")
        )
    if training is None:
        tiles.append(Tile("Time to target", words.seconds(plan.predicted_s), "predicted"))
        tiles.append(Tile("Energy", words.joules(plan.predicted_j), "predicted"))
        tiles.append(Tile("Peak power", words.watts(plan.predicted_peak_w), f"from the profile, {_against(plan)}"))
    else:
        tiles += _trained(plan, training)
    cost = plan.profile_cost or (records.profile.cost if records.profile else None)
    if cost:
        share = training.profiling_share if training else None
        beside = f"{words.multiple(share)} this training" if share is not None else f"{cost.probes} probes"
        tiles.append(Tile("Profiling", words.seconds(cost.time_s), beside))
    return tiles


def _trained(plan: Plan, training: TrainingRecord) -> list[Tile]:
    ending = "Time to target" if training.reached else "Target not reached"
    above = training.above_cap_s
    over = plan.cap_w is not None and training.power_peak_w > plan.cap_w
    power = _against(plan) + (f", {words.seconds(above)} above it" if plan.cap_w is not None else "")
    return [
        Tile(ending, words.seconds(training.time_s), _predicted(words.seconds(plan.predicted_s)), not training.reached),
        Tile("Energy", words.joules(training.energy_j), _predicted(words.joules(plan.predicted_j))),
        Tile("Peak power", words.watts(training.power_peak_w), power, over),
    ]


def _profile(records: Records) -> Section:
    profile, plan = records.profile, records.chosen
    items: list[Item] = []
    if profile is None:
        items.append(
            Note("Time and power", "There is no profile among these records: step times and powers are missing.")
        )
    elif not profile.measured:
        items.append(Note("Time and power", "The profile holds no cell with figures."))
    else:
        items += [maps.time_map(profile, plan), maps.power_map(profile, plan)]
    cost = (profile and profile.cost) or (plan and plan.profile_cost)
    if cost:
        text = words.profiling_cost(cost, plan, records.training)
        if profile and profile.reference and (once := profile.reference.cost):
            text += f" Beside it, once for the device, the reference workloads took {words.seconds(once.time_s)}."
        items.append(Note("What profiling cost", text))
    return Section("Time and power", "What every batch size takes on the device at every setting.", items)


def _batch_sizes(records: Records) -> Section:
    plan, efficiency = records.chosen, records.efficiency
    items: list[Item] = []
    if efficiency is None:
        text = "There is no efficiency curve among these records: the samples that a batch size needs are missing."
        items.append(Note("Samples needed", text))
    else:
        items.append(batches.samples_needed(efficiency))
    time = plan and batches.time_to_target(plan, records.profile, efficiency)
    items.append(time or Note("Time to target", "There is no plan among these records that lists a predicted time."))
    for part in ("proxy", "target"):
        items += _learning(part, getattr(records, part), records)
    intro = "A larger batch takes less time per sample and needs more samples; what counts is the product."
    return Section("Batch size", intro, items)


def _learning(part: str, curves: Sequence[LearningCurve], records: Records) -> list[Item]:
    if not curves:
        return []
    items: list[Item] = [trainings.learning_curves(f"{part}-curves", f"Learning curves on the {part}", curves)]
    if records.chosen and records.profile:
        sample_s = batches.best_sample_s(records.chosen, records.profile)
        kind = records.profile.provenance.kind
        title = f"The same over time, on the {part}"
        timed = trainings.timed_curves(f"{part}-curves-time", title, curves, sample_s, kind)
        items += [timed] if timed else []
    return items


def _choice(records: Records) -> Section:
    plan, items = records.chosen, list[Item]()
    title, intro = "The choice", "The point with the least predicted time among those whose peak power keeps the cap."
    if plan is not None and plan.memory_limit_bytes is not None:
        intro = f"{intro.rstrip('.')}, and whose memory the limit of {words.memory(plan.memory_limit_bytes)}."
    if plan is None:
        return Section(title, "", [Note("Plan", "There is no plan among these records, so nothing is chosen.")])
    if side := words.side(plan):
        items.append(Note("What the cap means", side))
    if sure := [text for text in (words.sure(plan), words.robust(plan)) if text]:
        items.append(Note("How sure it is", _sentences(sure)))
    if plan.notes:
        items.append(Note("Not to be relied on", _sentences(plan.notes)))
    origin = batches.predicted(plan, records.profile, records.efficiency)
    if plan.algorithm_cost is not None:
        items.append(Note("What the training algorithm costs", _sentences([plan.algorithm_cost])))
    if plan.algorithms:
        items.append(comparing.algorithm_rows(plan, origin))
    if plan.baselines:
        items.append(comparing.baseline_rows(plan, origin))
    if plan.candidates:
        items.append(comparing.candidate_rows(plan, origin))
    if plan.gain_over_caps:
        profile = records.profile
        one_cap = profile is not None and (profile.strategy in ("staircase", "guided") or bool(profile.aborted))
        items += [caps.gain_over_caps(plan, origin, one_cap=one_cap), caps.cap_rows(plan, origin)]
    else:
        items.append(Note("Speed-up over the range of caps", "The plan does not say what other caps would gain."))
    return Section(title, intro, items)


def _sentences(texts: Iterable[str]) -> str:
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in texts)


def _training(records: Records) -> Section:
    training, items = records.training, list[Item]()
    if training is None:
        items.append(Note("Training", "Nothing was trained yet, or its record is not among these."))
        return Section("Training", "", items)
    why = f" ({training.reason})" if training.reason else ""
    ended = (
        ""
        if training.ended is None
        else f"Ended: {training.ended}{why}, after {words.count(training.samples)} samples."
    )
    intro = f"{ended} {words.left_out(training)}".strip()
    items.append(trainings.power_trace(training) or Note("Power", "The record holds no readings of the meter."))
    if training.board_events:
        items.append(trainings.board_rows(training))
    items.append(trainings.evaluations(training) or Note("Metric", "The record holds no evaluation."))
    return Section("Training", intro, items)


def _comparison(records: Records) -> Section:
    comparison, items = records.comparison, list[Item]()
    title, intro = "Comparison", "Each rule's pick, trained to the target on the target's own data."
    if comparison is None:
        items.append(
            Note("Comparison", "The rules were not trained against each other; above stands what is predicted.")
        )
    else:
        items.append(comparing.bars(comparison) or Note("Comparison", "No rule's pick reached the target."))
        items.append(comparing.comparison_rows(comparison))
    return Section(title, intro if comparison else "", items)


def _sources(records: Records) -> Section:
    rows = []
    for record in _all(records):
        about = record.provenance
        made = (about.created_at or "-", about.software or "-", "-" if about.seed is None else str(about.seed))
        rows.append((record.name, words.origin(record=about.kind), about.device or "-", *made))
    head = ("record", "origin", "device", "made at", "by", "seed")
    table = Table("Records", _origin(records), head, (False,) * len(head), rows)
    return Section("Where this comes from", "", [table])


def _all(records: Records) -> list[Record]:
    given = (records.profile, records.efficiency, records.plan, records.training, records.comparison)
    return [record for record in given if record is not None]


def _origin(records: Records) -> str:
    kinds = {record.name: record.provenance.kind for record in _all(records)}
    if not kinds:
        kinds = {"learning curves": (*records.proxy, *records.target)[0].provenance.kind}
    return words.grouped(kinds)


def _name(records: Records) -> str:
    return _first(records, "workload") or "a training"


def _about(records: Records) -> str:
    parts = (_first(records, "workload"), _first(records, "device"), _first(records, "algorithm"))
    return "  ·  ".join(part for part in parts if part)


def _first(records: Records, field: str) -> str | None:
    holders = (records.profile, records.chosen, records.comparison, records.efficiency, *records.target, *records.proxy)
    found: Callable[[object], str | None] = lambda holder: getattr(holder, field, None)  # noqa: E731
    return next((value for holder in holders if (value := found(holder))), None)


def _row(records: Records, rule: str) -> ComparisonRow | None:
    return next((row for row in records.comparison.rows if row.rule == rule), None) if records.comparison else None


def _against(plan: Plan) -> str:
    if plan.cap_w is None:
        return words.cap(plan.cap_w)
    return f"cap {words.cap(plan.cap_w)}" if plan.supply_cap_w is None else f"cap {words.watts(plan.cap_w)} here"


def _predicted(text: str) -> str:
    return "" if text == "-" else f"predicted {text}"
