"""From a profile, an efficiency curve and a cap to a Plan."""

from __future__ import annotations

from wattune.errors import CapError, NoPoint, RecordError
from wattune.planning.candidates import candidates, figures, why_slower
from wattune.planning.caps import gain_over_caps
from wattune.planning.guarding import NOT_PINNED, guard_command
from wattune.planning.memory import needed, within
from wattune.planning.rules import BASELINES, choose, fields
from wattune.planning.selection import Limit, fastest
from wattune.planning.sides import module_cap
from wattune.planning.sizes import at_size
from wattune.planning.sureness import sureness
from wattune.planning.table import Option, Table
from wattune.records import (
    Baseline,
    CapSide,
    EfficiencyCurve,
    Kind,
    Plan,
    ProfileCell,
    ProfileKey,
    ProfileTable,
    provenance,
)

CHECK = "wattune profile --check PROFILE --device DEVICE"
"""The command that measures five cells of a stale table again."""


def plan(
    profile: ProfileTable,
    efficiency: EfficiencyCurve | None = None,
    *,
    cap_w: float | None,
    cap_side: CapSide = "module",
    margin_w: float = 0.0,
    batch_size: int | None = None,
    memory_bytes: float | None = None,
) -> Plan:
    """Choose batch size and clock together: the measured point that trains fastest among those that keep the cap.

    A point keeps the cap where its ``power_peak_w`` plus ``margin_w`` is at most ``cap_w`` (None: no cap), in watts.
    Where that is a cap at the terminals of the supply (``cap_side`` "supply"), the profile's ``supply`` says what of it
    is the module's. ``target`` is that of the curve. The names of the workloads may differ, since the curve is that of
    a proxy.

    ``batch_size``: choose for this one only, the baselines left out. Without ``efficiency`` it is needed, unless the
    profile has no other. ``memory_bytes``: nothing is chosen of which a step takes more.

    Raises: CapError where no measured point keeps the cap; InputError for a cap that is not a positive number, one at a
    supply that is not known, or a batch size that was not profiled; NoPoint where nothing fits in the memory limit, or
    no proxy run reached the target at any feasible point; RecordError where the records do not fit together.
    Source: arXiv 2502.18323, Algorithm 1.
    """
    limit = Limit(module_cap(cap_w, cap_side, profile.supply), margin_w)
    whole, (profile, efficiency, said) = profile, at_size(profile, efficiency, batch_size)
    one_size = profile is not whole
    profile, too_large = within(profile, memory_bytes)
    table = Table(profile, efficiency)
    chosen = fastest(table.rows, limit)
    if chosen is None:
        raise _nothing(table, limit)
    source = profile.provenance
    if profile.program is not None and chosen.cell.power_limit_w is not None:
        said += (NOT_PINNED,)
    made = Plan(
        **figures(chosen, table.reference_samples),
        step_s=chosen.step_s,
        power_mean_w=chosen.mean_w,
        **sureness(profile, efficiency, limit, chosen),
        cap_w=limit.cap_w,
        cap_side=cap_side,
        supply_cap_w=cap_w if cap_side == "supply" else None,
        supply=profile.supply,
        margin_w=limit.margin_w,
        memory_limit_bytes=memory_bytes,
        predicted_memory_bytes=needed(profile).get(chosen.place[:2]),
        notes=(*said, *_notes(chosen.cell, efficiency), *profile.notes),
        candidates=candidates(table, limit, chosen, too_large),
        baselines=() if one_size else _baselines(table, limit, chosen),
        gain_over_caps=gain_over_caps(table, limit.margin_w),
        device=profile.device,
        workload=profile.workload,
        algorithm=profile.algorithm,
        target=efficiency.target,
        key=profile.key,
        profile_cost=profile.cost,
        sensor_window_s=profile.sensor_window_s,
        sensor_rail=profile.sensor_rail,
        program=profile.program,
        first_tenth=efficiency.first_tenth,
        provenance=provenance(
            source.kind, device=source.device or profile.device, model=source.model, data=efficiency.provenance.data
        ),
    )
    return made.model_copy(update={"run_by": guard_command(made)})


def check_profile(profile: ProfileTable, key: ProfileKey, *, kind: Kind | None = None, command: str = CHECK) -> None:
    """Refuse a table that was not measured with this device, model, input shape, ... A table without a key, from
    another program, is compared by device and algorithm only. ``kind`` is that of the device, where there is one: what
    was simulated is no profile of a real board, nor the other way round.

    Where nothing but the board's mode or the software has changed, the error names ``command``, which measures five
    cells again instead of all of them.

    Raises: RecordError naming every field that differs.
    """
    hint = "profile again"
    if profile.key is not None:
        differences = profile.key.differences(key)
        if profile.key.is_stale(key):
            hint = f"see by five cells whether it still holds: {command}"
    else:
        pairs = {"device": (profile.device, key.device), "algorithm": (profile.algorithm, key.algorithm)}
        differences = [f"{name} ({wanted}, not {found})" for name, (found, wanted) in pairs.items() if found != wanted]
    foreign = profile.provenance.kind_on(kind)
    if foreign:
        differences, hint = [*foreign, *differences], "profile again"
    if differences:
        raise RecordError(
            "the profile belongs to something else, it differs in", value=", ".join(differences), hint=hint
        )


def _baselines(table: Table, limit: Limit, chosen: Option) -> tuple[Baseline, ...]:
    baselines = []
    for rule in BASELINES:
        choice = choose(rule, table, limit)
        if choice is None:
            continue
        why_not, speed_up = choice.why_not, None
        if choice.feasible and isinstance(choice.option, Option):
            why_not = why_slower(choice.option, chosen)
            if choice.option.relative_time is not None and chosen.relative_time is not None:
                speed_up = choice.option.relative_time / chosen.relative_time
        baselines.append(
            Baseline(**fields(choice, table), rule=rule, feasible=choice.feasible, why_not=why_not, speed_up=speed_up)
        )
    return tuple(baselines)


def _notes(chosen: ProfileCell, efficiency: EfficiencyCurve) -> tuple[str, ...]:
    point = efficiency.at(chosen.batch_size)
    notes = []
    if point.censored:
        notes.append(
            f"{point.censored} of {point.runs} proxy runs at batch size {chosen.batch_size} did not reach the target: "
            "it needs more samples than this plan counts with"
        )
    if chosen.disturbed:
        what = chosen.throttled or (f"{chosen.over_current} over-current events",)
        notes.append(f"the board held itself back while this point was measured ({', '.join(what)})")
    if chosen.swapped_bytes:
        notes.append(f"the board swapped {chosen.swapped_bytes / 2**20:.0f} MiB while this point was measured")
    return tuple(notes)


def _nothing(table: Table, limit: Limit) -> CapError | NoPoint:
    """Why nothing could be chosen."""
    if any(limit.keeps(option.peak_w) for option in table.at.values()):
        return NoPoint(
            "no proxy run reached the target at any batch size that keeps the cap",
            value=", ".join(str(b) for b, relative in table.relative_samples.items() if relative is None),
            hint="estimate with a larger budget or a lower proxy target",
        )
    measured = [(option.peak_w, option.place, "peak") for option in table.at.values()]
    stopped = [(probe.power_w, place, "reading of a stopped probe") for place, probe in table.aborted.items()]
    power_w, place, what = min(measured or stopped)
    if limit.keeps(power_w):
        return NoPoint(
            "every probe of the profile was stopped at the cap that it was made for",
            value=f"{table.aborted[place].cap_w:g} W",
            hint="profile again for this cap",
        )
    batch_size, _, clock_mhz, power_limit_w = place
    setting = (
        f" and {clock_mhz:g} MHz" if clock_mhz else f" and a limit of {power_limit_w:g} W" if power_limit_w else ""
    )
    lowest = f"the lowest measured {what} is {power_w:.4g} W, at batch size {batch_size}{setting}"
    margin = f" with a margin of {limit.margin_w:g} W" if limit.margin_w else ""
    return CapError(
        f"no measured point keeps the cap{margin}",
        value=f"{limit.cap_w:g} W",
        allowed=lowest,
        hint="raise the cap, or profile lower clocks or smaller batches",
    )
