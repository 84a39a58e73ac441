"""The record of a session, and the same in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattune.records import (
    PointChange,
    ProfileTable,
    SessionRecipe,
    SessionRecord,
    provenance,
)

if TYPE_CHECKING:
    from wattune.online.session import Session

SOURCES = {
    "curve": "the efficiency curve that was given",
    "prior": "what is usual over past workloads, since there is no efficiency curve",
    "prior and noise scale": "what is usual over past workloads, and the gradient noise of this training",
    "the user's batch size": "the batch size that was given, which stays",
}


def session_record(session: Session) -> SessionRecord:
    """Everything that a session took and chose. Raises: SensorError where nothing was ever read."""
    governor, options = session.governor, session.options
    device, prober, times = governor.device, governor.prober, governor.times
    figures = governor.meter.figures()
    knowledge, recipe = session.knowledge, session.recipe
    return SessionRecord(
        device=device.name,
        mode=device.mode,
        cap_w=governor.cap_w,
        cap_side=options.cap_side,
        supply_cap_w=options.supply_cap_w,
        supply=device.supply,
        margin_w=options.margin_w,
        max_temp_c=governor.max_temp_c,
        temperature_max_c=governor.watch.temperature_max_c,
        recipe=SessionRecipe(batch_size=recipe.batch_size, keep=recipe.keep, learning_rate_rule=recipe.rule),
        table=_table(session),
        efficiency_from=knowledge.source,
        noise_scale=None if knowledge.scale is None else knowledge.scale.samples,
        worth_of_curve=prober.search.worth_of_curve() if knowledge.source.startswith("prior") else None,
        worth_of_probing=prober.search.worth() if prober.cells else None,
        point=prober.place(prober.wanted) if not prober.probing else None,
        changes=tuple(PointChange(**change) for change in governor.changes),
        samples=governor.samples,
        steps=governor.steps,
        passes=session.passes,
        time_s=figures.time_s,
        energy_j=figures.energy_j,
        power_mean_w=figures.power_mean_w,
        power_peak_w=figures.power_peak_w,
        above_cap_s=figures.above_cap_s,
        readings=figures.readings,
        readings_above_cap=figures.readings_above_cap,
        compute_s=times.compute_s,
        waiting_s=times.waited_s,
        copying_s=times.copying_s,
        advice=times.advice(options.loader, on_gpu=governor.on_cuda),
        guard=governor.keeper.events,
        board_events=governor.watch.events,
        ended=session.ended,
        reason=session.reason,
        exact=None if governor.truth is None else governor.truth.figures(),
        notes=tuple(governor.notes),
        provenance=provenance(device.kind, device=device.name, seed=options.seed),
    )


def _table(session: Session) -> ProfileTable | None:
    prober, device = session.governor.prober, session.governor.device
    if not prober.cells and not prober.aborted:
        return None
    return ProfileTable(
        device=device.name,
        workload=type(session.governor.model).__name__,
        cells=tuple(prober.cells.values()),
        aborted=tuple(prober.aborted),
        sensor_window_s=device.sensor.window_s,
        sensor_rail=device.sensor.rail,
        supply=device.supply,
        strategy="session",
        notes=("measured by training steps, while the model trained",),
        provenance=provenance(device.kind, device=device.name),
    )


def explained(session: Session) -> str:
    """What was chosen, from what, and what knowing more would be worth, as lines of text."""
    governor, knowledge, recipe = session.governor, session.knowledge, session.recipe
    prober, device = governor.prober, governor.device
    cap = "no cap" if governor.cap_w is None else f"a cap of {governor.cap_w:.4g} W"
    lines = [f"{device.name} under {cap}, {governor.samples} samples in {governor.steps} steps."]
    figures = governor.meter.figures() if governor.keeper.has_read else None
    if figures is not None and figures.readings_above_cap:
        above = f"{figures.readings_above_cap} of {figures.readings} readings were above it"
        lines.append(f"{above}, the highest {figures.power_peak_w:.4g} W.")
    wanted = prober.place(prober.wanted)
    if prober.probing:
        lines.append(f"Measuring {wanted} by training there; {len(prober.cells)} points are measured.")
    else:
        lines.append(f"Training at {wanted}, chosen from {len(prober.cells)} measured points.")
        cell = prober.cells.get(prober.wanted)
        if cell is not None and cell.step_s is not None:
            lines.append(
                f"There a step takes {1e3 * cell.step_s:.4g} ms at {cell.power_mean_w:.4g} W (peak "
                f"{cell.power_peak_w:.4g} W)."
            )
    lines.append(f"Samples needed by each batch size: from {SOURCES[knowledge.source]}.")
    lines.append(f"Recipe: batch size {recipe.batch_size}, {recipe.rule}.")
    search = prober.search
    if search.reason:
        lines.append(f"Probing ended: {search.reason}.")
    lines.append(f"Measuring more points would save {100 * search.worth():.1f} % of the time to come, at most.")
    if knowledge.source.startswith("prior"):
        saved = f"{100 * search.worth_of_curve():.1f} % of the time to come"
        lines.append(f"Knowing the samples that each batch size needs (wattune estimate) is expected to save {saved}.")
    lines += [*governor.times.advice(session.options.loader, on_gpu=governor.on_cuda), *governor.notes]
    return "\n".join(lines)
