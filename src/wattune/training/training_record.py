"""The record of a training that is over."""

from __future__ import annotations

import math

from wattune.devices import Device
from wattune.records import Plan, TrainingRecord, provenance
from wattune.training.evaluation_work import counts_all
from wattune.training.loop import Outcome
from wattune.workloads import Workload

PAID_BACK_AGAINST = "largest batch, fixed clock"
"""The rule that needs no profile of the model: what profiling saves is its time less that of the plan."""


def training_record(
    device: Device,
    workload: Workload,
    plan: Plan,
    outcome: Outcome,
    *,
    seed: int | None,
    data: str | None,
    max_temp_c: float | None = None,
) -> TrainingRecord:
    """Everything that a training took, with what profiling cost against it."""
    figures = outcome.figures
    cost = plan.profile_cost
    left_out = {} if counts_all(device) else {"left_out": "evaluations and checkpoints, which were not recorded"}
    return TrainingRecord(
        plan=plan,
        metric=workload.metric.name,
        target=workload.target,
        reached=outcome.ended == "target reached",
        ended=outcome.ended,
        reason=outcome.reason,
        samples=outcome.samples,
        time_s=figures.time_s,
        energy_j=figures.energy_j,
        power_mean_w=figures.power_mean_w,
        power_peak_w=figures.power_peak_w,
        above_cap_s=figures.above_cap_s,
        readings=figures.readings,
        readings_above_cap=figures.readings_above_cap,
        evaluations=outcome.evaluations,
        max_temp_c=max_temp_c,
        temperature_max_c=outcome.temperature_max_c,
        guard=outcome.guard,
        board_events=outcome.board_events,
        replanned=outcome.replanned,
        trace=outcome.trace,
        exact=outcome.exact,
        profiling_share=cost.time_s / figures.time_s if cost is not None and figures.time_s else None,
        pays_after_trainings=_pays_after(plan, figures.time_s) if outcome.ended == "target reached" else None,
        provenance=provenance(
            device.kind, device=device.name, model=workload.model_fingerprint(), data=data, seed=seed, **left_out
        ),
    )


def _pays_after(plan: Plan, time_s: float) -> int | None:
    """Number of runs of this length after which profiling pays for itself; None if it never does."""
    other = next((b for b in plan.baselines if b.rule == PAID_BACK_AGAINST), None)
    if plan.profile_cost is None or other is None or other.speed_up is None or other.speed_up <= 1 or not time_s:
        return None
    return math.ceil(plan.profile_cost.time_s / (time_s * (other.speed_up - 1)))
