"""Every rule's pick, trained on the target itself: what choosing batch size and clock together is worth."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

from wattune import planning, training
from wattune.cap import PowerCap, SensorLimit
from wattune.cap_source import CapSource
from wattune.devices import Device
from wattune.errors import InputError
from wattune.goal import TIME, Goal
from wattune.job.coercion import Progress
from wattune.job.rules_in_turn import METHOD as TRAINED
from wattune.job.rules_in_turn import train_in_turn
from wattune.planning.baselines import batch_size_of
from wattune.planning.table import PlanningTable
from wattune.point import OperatingPoint
from wattune.profiling.cell_probe import CellProbe
from wattune.profiling.recording import absent_points
from wattune.profiling.rows import rows_of
from wattune.profiling.strategies import staircase, stays_under
from wattune.program.workload import ProgramWorkload
from wattune.proxy import curve as curve_of
from wattune.proxy import sweep
from wattune.records import (
    AbortedProbe,
    Candidate,
    Comparison,
    ComparisonRow,
    LearningCurve,
    Plan,
    ProfileCell,
    ProfileTable,
    SampleEfficiency,
    TrainingRecord,
    provenance,
)
from wattune.workloads import Workload

OURS, FASTEST = "wattune", "fastest"

METHOD = (
    "Each batch size and seed was trained once, to the target, on the target's own data. How many samples that takes "
    "depends neither on the clock nor on the device, so each training run was priced at every clock that a rule chose: "
    "every step, evaluation and checkpoint of it was given to the device again, under the cap. Micro-batches are "
    "assumed to need as many samples as whole batches, which batch normalization may change."
)


class _Priced(NamedTuple):
    """A point that a rule chose, under the highest cap if there are several."""

    point: OperatingPoint
    rule: str


def compare_rules(
    device: Device,
    workload: Workload | ProgramWorkload,
    profile: ProfileTable,
    efficiency: SampleEfficiency,
    *,
    cap: PowerCap | CapSource,
    goal: Goal = TIME,
    seeds: Sequence[int],
    folder: Path | None = None,
    processes: int | None = None,
    progress: Progress | None = None,
    price: Callable[..., TrainingRecord] | None = None,
) -> Comparison:
    """Train the target to the end for every rule and seed; see ``wattune.compare``. ``folder`` is for resuming.

    Under a cap that changes, wattune's pick is that of the plan. Each simpler rule keeps the batch size that it chooses
    under the highest cap, follows the caps by what it knows of power, and pauses where it knows no setting.

    On a real board each rule's point is trained in turn, and the fastest point stays unknown.

    Raises: InputError for a real board with a program, or under a cap that changes; RecordError if the records do not
    fit together; WorkloadError, DeviceError, OutputError.
    """
    is_program = isinstance(workload, ProgramWorkload)
    if device.executes_steps and (is_program or isinstance(cap, CapSource)):
        what = "a program" if is_program else "a cap that changes"
        raise InputError(f"comparing with {what}", value=device.name, allowed="a simulated or a replayed device")
    highest = cap.highest() if isinstance(cap, CapSource) else cap
    moving = cap if isinstance(cap, CapSource) else None
    limit = highest.at_sensor(profile.supply, profile.sensor_window_s)
    start = device.state_dict()
    whole = profile
    # With several knobs there is no fixed clock, and a row has hundreds of settings.
    if isinstance(workload, Workload) and len(device.knobs) == 1:
        whole = _with_rows_of_baselines(device, workload, profile, efficiency, limit)
    picks = {rule: planning.pick(rule, whole, efficiency, limit) for rule in (OURS, *planning.BASELINES)}
    picks[OURS] = planning.pick(OURS, profile, efficiency, limit, goal)
    if moving is not None:
        ours = planning.plan(profile, efficiency, cap=moving, goal=goal)
        picks[OURS] = Candidate(**ours.point.fields(), feasible=True)
    wanted = {_Priced(choice.point, rule) for rule, choice in picks.items() if choice is not None and choice.feasible}
    if device.executes_steps and isinstance(workload, Workload):
        trained = train_in_turn(
            device,
            workload,
            {one.point for one in wanted},
            limit=limit,
            algorithm=profile.algorithm,
            seeds=seeds,
            folder=folder,
            progress=progress,
        )
        trainings, method = {one: trained[one.point] for one in wanted}, TRAINED
        fastest = ComparisonRow(rule=FASTEST, why_not="on a real board only the points of the rules are trained")
    else:
        runs = sweep(
            workload,
            batch_sizes=whole.batch_sizes,
            seeds=seeds,
            folder=folder,
            algorithm=profile.algorithm,
            processes=processes,
            progress=progress,
        )
        # If no run reached the target, the fastest is unknown.
        own = curve_of(runs, workload=workload.name) if any(run.reached for run in runs) else None
        if own is not None:
            wanted |= {_Priced(point, FASTEST) for point in _contenders(whole, own, cap, limit)}

        def settings_of(one: _Priced) -> Plan | None:
            by = profile if one.rule == OURS else whole
            return None if moving is None else _settings(one, by, efficiency, moving, goal)

        def priced(run: LearningCurve, point: OperatingPoint, settings: Plan | None) -> TrainingRecord:
            # A simulated board starts each training from the same state, cold: the order of the rules must not matter.
            if start is not None:
                device.load_state_dict(start)
            pricing: Callable[..., TrainingRecord] = price or training.price
            return pricing(run, device, workload, point, cap_w=limit.limit_w, cap=moving, settings=settings)

        trainings = _price_all(wanted, runs, settings_of, priced, progress)
        fastest, method = _fastest(trainings, len(seeds)), METHOD
    rows = [*(_row(rule, choice, trainings, len(seeds)) for rule, choice in picks.items()), fastest]
    return Comparison(
        device=device.name,
        workload=workload.name,
        algorithm=profile.algorithm,
        cap_w=limit.limit_w,
        cap_side=highest.side,
        supply_cap_w=highest.supply_w,
        caps=None if moving is None else str(moving),
        goal=goal,
        seeds=tuple(seeds),
        method=method,
        rows=_relative(rows),
        provenance=provenance(device.kind, device=profile.device, data=workload.data_fingerprint()),
    )


def _price_all(
    wanted: Collection[_Priced],
    runs: Sequence[LearningCurve],
    settings_of: Callable[[_Priced], Plan | None],
    priced: Callable[[LearningCurve, OperatingPoint, Plan | None], TrainingRecord],
    progress: Progress | None,
) -> dict[_Priced, list[TrainingRecord]]:
    """Price the runs at each point that is wanted.

    Rules that choose the same point are priced once, if they also choose the same settings under other caps.
    """
    known: dict[tuple[OperatingPoint, str], list[TrainingRecord]] = {}
    trainings = {}
    for number, one in enumerate(sorted(wanted, key=lambda one: (one.point.order, one.rule))):
        if progress is not None:
            progress(number, len(wanted), f"pricing batch size {one.point.batch_size}")
        settings = settings_of(one)
        key = (one.point, "" if settings is None else one.rule)
        if key not in known:
            usable = [run for run in runs if run.batch_size == one.point.batch_size and run.evaluations]
            known[key] = [priced(run, one.point, settings) for run in usable]
        trainings[one] = known[key]
    if progress is not None:
        progress(len(wanted), len(wanted), "priced")
    return trainings


def _with_rows_of_baselines(
    device: Device, workload: Workload, profile: ProfileTable, efficiency: SampleEfficiency, limit: SensorLimit
) -> ProfileTable:
    """The profile with the cells measured that the baselines need, at the batch sizes that they choose.

    A staircase and a guided profile measure what wattune's own pick needs: along the cap, or less.
    """
    known: dict[OperatingPoint, ProfileCell | AbortedProbe] = {cell.point: cell for cell in profile.cells}
    known |= {probe.point: probe for probe in profile.aborted}
    probe = CellProbe(device, workload.without_weights(), profile.algorithm, steps=5, limit=limit.strict)

    def look_up(point: OperatingPoint) -> ProfileCell | AbortedProbe:
        if point not in known:
            known[point] = probe.measure(point)[0]
        return known[point]

    def sizes() -> set[int]:
        table = PlanningTable(profile, efficiency, limit.window_s)
        return {size for rule in planning.BASELINES if (size := batch_size_of(rule, table)) is not None}

    done: set[int] = set()
    while left := sizes() - done:  # where one does not fit in memory, a rule chooses the next
        for shape in rows_of(workload, profile.algorithm):
            if shape.batch in left:
                replayed = device.replayed_table
                absent = () if replayed is None else absent_points(replayed, [shape], device.combinations())
                staircase([shape], device.climbs(), look_up, absent, stays_under(limit.strict, device.sensor))
        done |= left
        cells = tuple(cell for _, cell in sorted(known.items()) if isinstance(cell, ProfileCell))
        aborted = tuple(probe for _, probe in sorted(known.items()) if isinstance(probe, AbortedProbe))
        profile = profile.model_copy(update={"cells": cells, "aborted": aborted})
    return profile


def _row(
    rule: str, choice: Candidate | None, trainings: dict[_Priced, list[TrainingRecord]], seeds: int
) -> ComparisonRow:
    if choice is None:
        return ComparisonRow(rule=rule, why_not="the profile and runs do not determine this rule's choice")
    point = choice.point
    if not choice.feasible:
        return ComparisonRow(rule=rule, **point.fields(), why_not=choice.why_not)
    runs = trainings[_Priced(point, rule)]
    # A seed that diverged before its first evaluation could not be priced.
    censored = seeds - sum(run.reached for run in runs)
    peak_w = max((run.power_peak_w for run in runs), default=None)
    figures = {"runs": seeds, "censored": censored, "power_peak_w": peak_w}
    if censored:
        why_not = f"{censored} of {seeds} seeds did not reach the target"
        return ComparisonRow(rule=rule, **point.fields(), **figures, why_not=why_not)
    times, energies = [run.time_s for run in runs], [run.energy_j for run in runs]
    return ComparisonRow(
        rule=rule,
        **point.fields(),
        **figures,
        time_s=mean(times),
        time_std_s=stdev(times) if len(times) > 1 else None,
        energy_j=mean(energies),
        energy_std_j=stdev(energies) if len(energies) > 1 else None,
    )


def _contenders(
    profile: ProfileTable, own: SampleEfficiency, cap: PowerCap | CapSource, limit: SensorLimit
) -> list[OperatingPoint]:
    """The point with the shortest step under the cap, for each batch size. One of them is the fastest; only pricing
    tells which, since evaluations and checkpoints take time as well."""
    if planning.pick(FASTEST, profile, own, limit) is None:
        return []
    best: dict[int, Candidate] = {}
    for candidate in planning.plan(profile, own, cap=cap).candidates:
        if candidate.feasible and candidate.relative_time is not None:
            best.setdefault(candidate.batch_size, candidate)
            best[candidate.batch_size] = min(
                best[candidate.batch_size], candidate, key=lambda c: c.relative_time or 0.0
            )
    return [candidate.point for candidate in best.values()]


def _fastest(trainings: dict[_Priced, list[TrainingRecord]], seeds: int) -> ComparisonRow:
    times = {
        one: mean(run.time_s for run in runs)
        for one, runs in trainings.items()
        if sum(run.reached for run in runs) == seeds
    }
    if not times:
        return ComparisonRow(rule=FASTEST, why_not="no point reached the target with every seed")
    best = min(times, key=lambda one: times[one])
    choice = Candidate(**best.point.fields(), feasible=True)
    return _row(FASTEST, choice, trainings | {_Priced(best.point, FASTEST): trainings[best]}, seeds)


def _settings(one: _Priced, profile: ProfileTable, efficiency: SampleEfficiency, cap: CapSource, goal: Goal) -> Plan:
    """The settings of a rule under each of the caps, at its shape.

    Rules with a fixed clock know the reference workloads' power alone, all others the power of the workload itself.
    """
    if one.rule == OURS:
        return planning.plan(profile, efficiency, cap=cap, goal=goal)
    cells = tuple(cell for cell in profile.cells if cell.shape == one.point.shape)
    part = profile.model_copy(update={"cells": cells, "aborted": ()})
    plan = planning.plan(part, cap=cap, batch_size=one.point.batch_size)
    found = plan.candidates
    if one.rule.endswith("fixed clock"):
        worst_w = planning.worst_case(profile, plan.cap_window_s)
        found = tuple(
            candidate.model_copy(update={"predicted_peak_w": worst_w[candidate.knobs], "predicted_window_w": None})
            for candidate in found
            if candidate.knobs in worst_w
        )
    # Without a mean power, no rule learns from the readings of its training.
    return plan.model_copy(update={"candidates": found, "power_mean_w": None})


def _relative(rows: Sequence[ComparisonRow]) -> tuple[ComparisonRow, ...]:
    times = {row.rule: row.time_s for row in rows}
    ours, fastest = times[OURS], times[FASTEST]
    return tuple(
        row.model_copy(
            update={
                "speed_up": row.time_s / ours if row.time_s and ours else None,
                "above_fastest": row.time_s / fastest - 1 if row.time_s and fastest else None,
            }
        )
        for row in rows
    )
