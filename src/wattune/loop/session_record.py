"""The record of a session, and its explanation in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wattune.cap import Over
from wattune.records import (
    PointChange,
    ProfileTable,
    SessionRecipe,
    SessionRecord,
    provenance,
)
from wattune.reporting.phrases import under
from wattune.search.search import OwnRecipe

if TYPE_CHECKING:
    from wattune.loop.session import Session

SOURCES = {
    "curve": "the given efficiency curve",
    "prior": "a prior over past workloads, without an efficiency curve",
    "prior and noise scale": "a prior over past workloads and the gradient noise of this run",
    "the user's batch size": "not needed, since the batch size is fixed",
}

SEARCH_TAKES = "30 to 60 s"
"""Training time that a search usually takes, see docs/own-loop.md."""

OVER_IN_WORDS: dict[Over, str] = {
    "device": "each device",
    "node": "the devices of each computer",
    "job": "all devices",
}


class Gain(NamedTuple):
    """``times``: as fast as the user's ``own`` recipe, with all that the search took; ``ahead``: from here on."""

    times: float
    ahead: float | None
    own: OwnRecipe


def gain(session: Session) -> Gain | None:
    """Compare training so far with the user's own recipe, at the best of the first clock alone under the same cap.

    All but the steps themselves would have taken as long: evaluations, waiting for data. None if too little is known.
    """
    run, controller = session.run, session.run.controller
    own = controller.search.own_recipe()
    taken_s = run.capped.meter.elapsed_s
    if own is None or taken_s <= 0 or not run.changes:
        return None
    relative = session.sample_model.relative

    def steps(batch_size: int, samples: float) -> float:
        """Steps of the own recipe that bring the training as far as samples at a batch size."""
        return samples / relative.get(batch_size, (1.0, 0.0))[0] / own.point.batch_size

    ends = [*(change["samples"] for change in run.changes[1:]), run.samples]
    done = sum(
        steps(change["point"]["batch_size"], end - change["samples"])
        for change, end in zip(run.changes, ends, strict=True)
    )
    others_s = max(0.0, taken_s - run.times.compute_s)
    cell = None if controller.probing else controller.cells.get(controller.wanted)
    ahead = None
    if cell is not None and cell.step_s:
        ahead = own.step_s * steps(cell.batch_size, cell.batch_size) / cell.step_s
    return Gain((others_s + done * own.step_s) / taken_s, ahead, own)


def _gain_in_words(session: Session) -> list[str]:
    found = gain(session)
    if found is None:
        return []
    cap = under(session.run.limit.limit_w, session.asked.cap.supply_w)
    ahead = "" if found.ahead is None else f", and {found.ahead:.2f} times from here on"
    how = "" if found.own.is_measured else "; a step of your own recipe is a forecast"
    return [
        f"{found.times:.2f} times as fast as your own recipe {cap}, search included{ahead} (your own: "
        f"{found.own.point}{how})."
    ]


def session_record(session: Session) -> SessionRecord:
    """The record of a session. Raises: SensorError if the sensor never gave a reading."""
    run, asked = session.run, session.asked
    device, controller, times = run.device, run.controller, run.times
    figures = run.capped.meter.figures()
    sample_model, recipe = session.sample_model, session.recipe
    found = gain(session)
    return SessionRecord(
        device=device.name,
        mode=device.mode,
        cap_w=run.limit.limit_w,
        cap_window_s=run.limit.window_s,
        cap_side=asked.cap.side,
        supply_cap_w=asked.cap.supply_w,
        goal=asked.goal,
        supply=device.supply,
        margin_w=run.limit.margin_w,
        max_temp_c=run.limit.max_temp_c,
        temperature_max_c=run.capped.monitor.temperature_max_c,
        recipe=SessionRecipe(batch_size=recipe.batch_size, keep=recipe.keep, learning_rate_rule=recipe.rule),
        gain=None if found is None else found.times,
        own_point=None if found is None else found.own.point,
        gain_from=None if found is None else "measured" if found.own.is_measured else "forecast",
        table=_table(session),
        efficiency_from=sample_model.source,
        noise_scale=None if sample_model.scale is None else sample_model.scale.samples,
        point=controller.wanted if not controller.probing else None,
        changes=tuple(PointChange(**change) for change in run.changes),
        samples=session.samples,
        ranks=session.size,
        over=asked.given.over if asked.ranks > 1 else None,
        steps=run.steps,
        passes=session.passes,
        time_s=figures.time_s,
        energy_j=figures.energy_j,
        power_mean_w=figures.power_mean_w,
        power_peak_w=figures.power_peak_w,
        above_cap_s=figures.above_cap_s,
        readings=figures.readings,
        readings_above_cap=figures.readings_above_cap,
        compute_s=times.compute_s,
        waiting_s=times.waiting_s,
        copying_s=times.copying_s,
        guard=run.capped.limiter.events,
        board_events=run.capped.board_events,
        ended=session.ended,
        reason=session.reason,
        cap_intervals=run.capped.cap_intervals,
        paused_s=run.paused_s,
        exact=None if run.capped.truth is None else run.capped.truth.figures(),
        notes=tuple(run.notes),
        provenance=provenance(device.kind, device=device.name, seed=asked.given.seed),
    )


def _table(session: Session) -> ProfileTable | None:
    controller, device = session.run.controller, session.run.device
    if not controller.cells and not controller.aborted:
        return None
    return ProfileTable(
        device=device.name,
        workload=type(session.run.model).__name__,
        cells=tuple(controller.cells.values()),
        aborted=tuple(controller.aborted),
        sensor_window_s=device.sensor.window_s,
        sensor_rail=device.sensor.rail,
        supply=device.supply,
        strategy="session",
        notes=("measured by training steps, while the model trained",),
        provenance=provenance(device.kind, device=device.name),
    )


def explanation(session: Session) -> str:
    """The choice of the point and its reasons, as lines of text."""
    run, sample_model, recipe, asked = session.run, session.sample_model, session.recipe, session.asked
    controller, device = run.controller, run.device
    cap = "no cap" if run.limit.limit_w is None else f"a cap of {run.limit.limit_w:.4g} W"
    if run.capped.follows:
        cap = f"a cap that changes, with pauses of {run.capped.paused_s:.4g} s"
    if session.size > 1:
        cap = f"{cap} for {OVER_IN_WORDS[asked.given.over]}"
    of_ranks = "" if session.size == 1 else f" of {session.size} ranks"
    lines = _gain_in_words(session)
    lines += [f"{device.name} under {cap}, {session.samples} samples in {run.steps} steps{of_ranks}."]
    figures = run.capped.meter.figures() if run.capped.limiter.has_read else None
    if figures is not None and figures.readings_above_cap:
        above = f"{figures.readings_above_cap} of {figures.readings} readings exceeded it"
        lines.append(f"{above}, the highest was {figures.power_peak_w:.4g} W.")
    wanted, points = controller.wanted, len(controller.cells)
    if controller.probing and session.is_over:
        lines.append(
            f"The training run ended before the search ({run.capped.meter.elapsed_s:.3g} s; usually {SEARCH_TAKES} are "
            f"needed); {points} points were measured."
        )
    elif controller.probing:
        lines.append(f"Measuring {wanted} by training there; {points} points are measured.")
    else:
        verb = "Trained" if session.is_over else "Training"
        lines.append(f"{verb} at {wanted}{session.on_ranks(wanted.batch_size)}, chosen from {points} measured points.")
        cell = controller.cells.get(controller.wanted)
        if cell is not None and cell.step_s is not None:
            lines.append(
                f"There a step takes {1e3 * cell.step_s:.4g} ms at {cell.power_mean_w:.4g} W (peak "
                f"{cell.power_peak_w:.4g} W)."
            )
    lines.append(f"Relative samples to target: {SOURCES[sample_model.source]}.")
    lines.append(f"Recipe: batch size {recipe.batch_size}{session.on_ranks(recipe.batch_size)}, {recipe.rule}.")
    if controller.search.reason:
        lines.append(f"Probing ended: {controller.search.reason}.")
    return "\n".join([*lines, *run.notes])
