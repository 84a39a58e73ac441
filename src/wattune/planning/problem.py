"""The question that a plan answers, with records arranged for it, and the record of the answer."""

from __future__ import annotations

import math
import re
import shlex
from typing import NamedTuple

from wattune.cap import PowerCap, SensorLimit
from wattune.cap_source import FAR
from wattune.errors import CapError, InputError, NoFeasiblePoint, did_you_mean
from wattune.goal import Goal
from wattune.planning.baselines import BASELINES, choose, fields
from wattune.planning.candidates import candidates, figures, needed, within
from wattune.planning.confidence import confidence
from wattune.planning.objective import Objective, predictions
from wattune.planning.own_batch_size import TablePick, why_no_own
from wattune.planning.table import Option, PlanningTable
from wattune.records import (
    Baseline,
    Candidate,
    EfficiencyPoint,
    Plan,
    ProfileCell,
    ProfileTable,
    SampleEfficiency,
    provenance,
)

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


OTHER_CAP = (
    "the profile was made for another cap, and knows few points besides those for that: profile for this cap, or with "
    "--strategy full for several"
)
"""Note of a plan for another cap than its profile was made for, unless the profile is a full grid."""


ENERGY_DOUBTED = {
    "sim:jetson-nano": "on this simulated board the energy of a sample falls up to the highest clock, but a real "
    "Jetson Nano is published to take less at a lower one: measure a real board before you rely on it for energy"
}
"""Board -> note of a plan for another goal than time; docs/calibration.md has the figures."""


class Problem(NamedTuple):
    """A goal over the points under a cap, the highest one if it changes.

    ``is_one_size``: the batch size was given; ``left_out``: candidates that do not fit in memory; ``notes``: caveats.
    """

    objective: Objective
    cap: PowerCap
    is_one_size: bool
    memory_bytes: float | None
    left_out: tuple[Candidate, ...]
    notes: tuple[str, ...]

    @property
    def table(self) -> PlanningTable:
        """The points, arranged."""
        return self.objective.table


def pose(
    whole: ProfileTable,
    efficiency: SampleEfficiency | None,
    *,
    cap: PowerCap,
    goal: Goal,
    batch_size: int | None,
    memory_bytes: float | None,
) -> Problem:
    """Arrange the records for a choice; the arguments are those of ``plan``. Raises: as ``plan``."""
    limit = cap.at_sensor(whole.supply, whole.sensor_window_s)
    part, curve, notes = _at_size(whole, efficiency, batch_size)
    profile, left_out = within(part, memory_bytes)
    table = PlanningTable(profile, curve, limit.window_s)
    return Problem(Objective(goal, table, limit), cap, part is not whole, memory_bytes, left_out, notes)


def record(problem: Problem, chosen: TablePick, *, is_constant: bool = True) -> Plan:
    """The plan to train at the chosen point. ``is_constant``: the cap is, so that other rules can be compared."""
    objective, cap, pick = problem.objective, problem.cap, chosen.option
    table, limit, one_size = objective.table, objective.limit, problem.is_one_size
    profile, efficiency, notes = table.profile, table.efficiency, problem.notes
    why_no_rival = why_no_own(table, chosen)
    own_is_kept = chosen.own is not None and chosen.own.choice == chosen.own.batch_size
    source = profile.provenance
    is_for_another_cap = not profile.is_full_grid and profile.cost is not None and profile.cost.cap_w != limit.limit_w
    if profile.program is not None and pick.cell.power_limit_w is not None:
        notes += (NOT_PINNED,)
    of_pick = figures(pick, table.reference_samples)
    result = Plan(
        **of_pick | predictions(objective, of_pick["predicted_s"], of_pick["predicted_j"]),
        step_s=pick.step_s,
        power_mean_w=pick.mean_w,
        **confidence(objective, pick),
        own_batch_size=efficiency.own_batch_size,
        rival_batch_size=chosen.own and chosen.own.rival,
        p_faster=chosen.own and chosen.own.p_faster,
        expected_gain=chosen.own and chosen.own.gain,
        front=objective.front(pick.cell.batch_size if own_is_kept else None) if is_constant else (),
        cap_w=limit.limit_w,
        cap_side=cap.side,
        supply_cap_w=cap.supply_w,
        supply=profile.supply,
        margin_w=limit.margin_w,
        cap_window_s=limit.window_s,
        memory_limit_bytes=problem.memory_bytes,
        predicted_memory_bytes=needed(profile).get(pick.point.shape),
        notes=(
            *notes,
            *(() if why_no_rival is None or one_size else (why_no_rival,)),
            *_notes(pick.cell, efficiency),
            *((ONE_SEED,) if not one_size and _has_one_seed(efficiency) else ()),
            *(() if objective.goal.is_time else (note for d, note in ENERGY_DOUBTED.items() if d == profile.device)),
            *((OTHER_CAP,) if is_constant and is_for_another_cap else ()),
            *profile.notes,
        ),
        candidates=candidates(table, limit, lambda option: objective.why_not(option, pick), problem.left_out),
        baselines=_baselines(objective, pick) if is_constant and not one_size else (),
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


def _at_size(
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
        hint = did_you_mean(batch_size, sizes)
        raise InputError("the profile has no batch size", value=batch_size, allowed=allowed, hint=hint)
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


def why_nothing(table: PlanningTable, limit: SensorLimit) -> CapError | NoFeasiblePoint:
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
        hint="are these mW?"
        if power_w > FAR * (limit.limit_w or math.inf)
        else "raise the cap, or profile lower clocks or smaller batches",
    )


def _guard_command(plan: Plan) -> str | None:
    """The command that runs the profile's program at the chosen point, under its cap.

    ``STEPS`` stands for the number of steps. None without a program, and for one that takes values unknown here.
    """
    if plan.program is None or re.search(r"\{(rate|seed|data)\}", plan.program.command):
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
