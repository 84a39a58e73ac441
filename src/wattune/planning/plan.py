"""The plan: from a profile, an efficiency record and a cap to the point to train at."""

from __future__ import annotations

import shlex

from wattune.cap import PowerCap, SensorLimit
from wattune.errors import CapError, InputError, NoFeasiblePoint, RecordError
from wattune.goal import TIME, Goal
from wattune.planning.baselines import BASELINES, choose, fields, gain_over_caps
from wattune.planning.candidates import candidates, figures, needed, within
from wattune.planning.confidence import confidence
from wattune.planning.objective import Objective, predictions
from wattune.planning.own_batch_size import own_fields, pick_from, why_no_own
from wattune.planning.table import Option, PlanningTable
from wattune.records import (
    Baseline,
    EfficiencyPoint,
    Kind,
    Plan,
    ProfileCell,
    ProfileKey,
    ProfileTable,
    SampleEfficiency,
    provenance,
)

CHECK = "wattune profile --check PROFILE --device DEVICE"
"""The command that measures five cells of a stale table again."""

NO_CURVE = (
    "no efficiency record was given, so only the clock is chosen, for the given batch size; `wattune estimate` shows "
    "how many samples other batch sizes need"
)
"""Note of a plan without an efficiency record."""

STEPS = "STEPS"
"""Placeholder in the command for the number of steps, which the user chooses."""

ONE_SEED = "one proxy run for each batch size: how sure the choice of the batch size is, is not known; --seeds 3 tells"
"""Note of a plan whose efficiency record has no spread over seeds."""

NOT_PINNED = "`wattune guard` sets no power limit: set that of this plan first, with `nvidia-smi --power-limit`"
"""Note of a plan for a program on a device with a power limit."""


def plan(
    profile: ProfileTable,
    efficiency: SampleEfficiency | None = None,
    *,
    cap: PowerCap,
    goal: Goal = TIME,
    batch_size: int | None = None,
    memory_bytes: float | None = None,
) -> Plan:
    """Choose batch size and clock together: the measured point that stays under the cap and is best for the goal.

    A point stays under the cap if its power plus the margin is at most the cap: the highest mean over the cap's window,
    with its error, or the highest reading. For a cap at the terminals
    of the supply, the profile's ``supply`` says how much of it is left to the module. ``target`` is that of the curve.
    The names of the workloads may differ, since the curve is that of a proxy.

    ``batch_size``: choose for this one only, the baselines left out. Without ``efficiency`` it is needed, unless the
    profile has no other. ``memory_bytes``: nothing is chosen of which a step takes more.

    Raises: CapError if no measured point stays under the cap; InputError for a cap at a supply that is not known, a
    batch size that was not profiled, or a goal that the records cannot tell about; NoFeasiblePoint if nothing fits in
    memory or meets the deadline, or no proxy run reached the target at any feasible point; RecordError if the
    records do not fit together.
    Source: arXiv 2502.18323, Algorithm 1.
    """
    limit = cap.at_sensor(profile.supply, profile.sensor_window_s)
    whole, (profile, efficiency, notes) = profile, at_size(profile, efficiency, batch_size)
    one_size = profile is not whole
    profile, left_out = within(profile, memory_bytes)
    table = PlanningTable(profile, efficiency, limit.window_s)
    objective = Objective(goal, table, limit)
    chosen = pick_from(objective)
    if chosen is None:
        raise _why_nothing(table, limit)
    pick, why_no_rival = chosen.option, why_no_own(table, chosen)
    objective.check(pick)
    own_is_kept = chosen.own is not None and chosen.own.choice == chosen.own.batch_size
    source = profile.provenance
    if profile.program is not None and pick.cell.power_limit_w is not None:
        notes += (NOT_PINNED,)
    result = Plan(
        **figures(pick, table.reference_samples),
        step_s=pick.step_s,
        power_mean_w=pick.mean_w,
        **confidence(objective, pick),
        **own_fields(objective, chosen),
        **predictions(objective, pick),
        front=objective.front(pick.cell.batch_size if own_is_kept else None),
        cap_w=limit.limit_w,
        cap_side=cap.side,
        supply_cap_w=cap.supply_w,
        supply=profile.supply,
        margin_w=limit.margin_w,
        cap_window_s=limit.window_s,
        memory_limit_bytes=memory_bytes,
        predicted_memory_bytes=needed(profile).get(pick.point.shape),
        notes=(
            *notes,
            *(() if why_no_rival is None or one_size else (why_no_rival,)),
            *_notes(pick.cell, efficiency),
            *((ONE_SEED,) if not one_size and _has_one_seed(efficiency) else ()),
            *profile.notes,
        ),
        candidates=candidates(table, limit, lambda option: objective.why_not(option, pick), left_out),
        baselines=() if one_size else _baselines(objective, pick),
        gain_over_caps=gain_over_caps(table, limit) if goal.is_time else (),
        device=profile.device,
        workload=profile.workload,
        algorithm=profile.algorithm,
        target=efficiency.target,
        key=profile.key,
        profile_cost=profile.cost,
        sensor_window_s=profile.sensor_window_s,
        sensor_rail=profile.sensor_rail,
        program=profile.program,
        provenance=provenance(
            source.kind, device=source.device or profile.device, model=source.model, data=efficiency.provenance.data
        ),
    )
    return result.model_copy(update={"run_by": _guard_command(result)})


def check_profile(profile: ProfileTable, key: ProfileKey, *, kind: Kind | None = None, command: str = CHECK) -> None:
    """Refuse a table that was measured with another device, model, input shape, ...

    A table without a key, from another program, is compared by device and algorithm only. ``kind`` is that of the
    device, if there is one: a simulated profile is refused for a real board, and the other way round. If only the
    board's mode or the software has changed, the error names ``command``, which measures five cells again.

    Raises: RecordError naming every field that differs.
    """
    hint = "profile again"
    if profile.key is not None:
        differences = profile.key.differences(key)
        if profile.key.is_stale(key):
            hint = f"check with five cells if it still holds: {command}"
    else:
        pairs = {"device": (profile.device, key.device), "algorithm": (profile.algorithm, key.algorithm)}
        differences = [f"{name} ({value}, not {own})" for name, (own, value) in pairs.items() if own != value]
    foreign = profile.provenance.kind_on(kind)
    if foreign:
        differences, hint = [*foreign, *differences], "profile again"
    if differences:
        raise RecordError(
            "the profile does not match this device and workload; it differs in",
            value=", ".join(differences),
            hint=hint,
        )


def at_size(
    profile: ProfileTable, efficiency: SampleEfficiency | None, batch_size: int | None
) -> tuple[ProfileTable, SampleEfficiency, tuple[str, ...]]:
    """The profile's part for this batch size, a curve for it, and notes; all of it if ``batch_size`` is None.

    Raises: InputError for a batch size that was not profiled, or if it is missing without a curve and with several
    batch sizes in the profile.
    """
    sizes = sorted({cell.batch_size for cell in profile.cells} | {probe.batch_size for probe in profile.aborted})
    allowed = ", ".join(map(str, sizes))
    if batch_size is None and efficiency is None and len(sizes) == 1:
        batch_size = sizes[0]
    if batch_size is None:
        if efficiency is None:
            raise InputError(
                "the batch size is missing",
                allowed=allowed,
                hint="give the one that you train with, or an efficiency record to choose it by",
            )
        return profile, efficiency, ()
    if batch_size not in sizes:
        raise InputError("the profile has no batch size", value=batch_size, allowed=allowed)
    part = profile.model_copy(
        update={
            "cells": tuple(cell for cell in profile.cells if cell.batch_size == batch_size),
            "aborted": tuple(probe for probe in profile.aborted if probe.batch_size == batch_size),
        }
    )
    if efficiency is not None:
        return part, efficiency, ()
    even = SampleEfficiency(
        workload=profile.workload,
        algorithm=profile.algorithm,
        reference_batch_size=batch_size,
        points=(EfficiencyPoint(batch_size=batch_size, relative_samples=1.0),),
    )
    return part, even, (NO_CURVE,)


def _baselines(objective: Objective, pick: Option) -> tuple[Baseline, ...]:
    baselines, table, limit = [], objective.table, objective.limit
    for rule in BASELINES:
        choice = choose(rule, table, limit)
        if choice is None:
            continue
        why_not, speed_up = choice.why_not, None
        if choice.feasible and isinstance(choice.option, Option):
            why_not = objective.why_not(choice.option, pick)
            if choice.option.relative_time is not None and pick.relative_time is not None:
                speed_up = choice.option.relative_time / pick.relative_time
        baselines.append(
            Baseline(**fields(choice, table), rule=rule, feasible=choice.feasible, why_not=why_not, speed_up=speed_up)
        )
    return tuple(baselines)


def _has_one_seed(efficiency: SampleEfficiency) -> bool:
    """True if the record has the runs of one seed alone, and no curve through all of them that shares their spread."""
    runs = [point.runs or 0 for point in efficiency.points]
    return max(runs) == 1 and efficiency.covariance is None and all(point.low is None for point in efficiency.points)


def _notes(cell: ProfileCell, efficiency: SampleEfficiency) -> tuple[str, ...]:
    point = efficiency.at(cell.batch_size)
    notes = []
    if point.censored:
        notes.append(
            f"{point.censored} of {point.runs} proxy runs at batch size {cell.batch_size} did not reach the target: "
            "it needs more samples than this plan assumes"
        )
    if left_out := [run for run in efficiency.observations if run.batch_size == cell.batch_size and run.left_out]:
        notes.append(
            f"the proxy runs at batch size {cell.batch_size} form two clumps far apart, by another recipe or a seed "
            f"that diverged: {len(left_out)} of them are not in its samples"
        )
    if cell.disturbed:
        what = cell.throttled or (f"{cell.over_current} over-current events",)
        notes.append(f"the board was throttled while this point was measured ({', '.join(what)})")
    if cell.notices:
        notes.append(f"its clock was held below the setting while it was measured ({', '.join(cell.notices)})")
    if cell.swapped_bytes:
        notes.append(f"the board swapped {cell.swapped_bytes / 2**20:.0f} MiB while this point was measured")
    return tuple(notes)


def _why_nothing(table: PlanningTable, limit: SensorLimit) -> CapError | NoFeasiblePoint:
    """The reason why no point could be chosen."""
    if any(limit.allows(option.capped_w) for option in table.at.values()):
        return NoFeasiblePoint(
            "no proxy run reached the target at any batch size that stays under the cap",
            value=", ".join(str(b) for b, relative in table.relative_samples.items() if relative is None),
            hint="estimate with a larger budget or a lower proxy target",
        )
    kind = "peak" if limit.window_s is None else f"mean over {limit.window_s:g} s"
    powers = [(option.capped_w, point, kind) for point, option in table.at.items()]
    stopped = [(probe.power_w, point, "reading of a stopped probe") for point, probe in table.aborted.items()]
    power_w, point, what = min(powers or stopped)
    if limit.allows(power_w):
        return NoFeasiblePoint(
            "every probe of the profile was stopped at the cap that it was made for",
            value=f"{table.aborted[point].cap_w:g} W",
            hint="profile again for this cap",
        )
    lowest = f"the lowest measured {what} is {power_w:.4g} W, with {point}"
    margin = f" with a margin of {limit.margin_w:g} W" if limit.margin_w else ""
    return CapError(
        f"no measured point stays under the cap{margin}",
        value=f"{limit.limit_w:g} W",
        allowed=lowest,
        hint="raise the cap, or profile lower clocks or smaller batches",
    )


def _guard_command(plan: Plan) -> str | None:
    """The command that runs the profile's program at the chosen point, under its cap; None without a program.

    ``STEPS`` stands for the number of steps.
    """
    if plan.program is None:
        return None
    words = ["wattune", "guard", "--device", plan.program.device]
    if plan.clock_mhz is not None:
        words += ["--clock", f"{plan.clock_mhz:.9g}MHz"]
    if plan.supply_cap_w is not None:
        words += ["--cap", f"{plan.supply_cap_w:.9g}W@supply"]
    elif plan.cap_w is not None:
        words += ["--cap", f"{plan.cap_w:.9g}W"]
    program = [
        word.replace("{batch_size}", str(plan.batch_size)).replace("{steps}", STEPS)
        for word in shlex.split(plan.program.command)
    ]
    return shlex.join([*words, "--", *program])
