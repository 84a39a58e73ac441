"""Evaluations and checkpoints in a plan's prediction."""

from __future__ import annotations

import math

from wattune.records import Plan, PlannedEvaluations


def with_evaluations(plan: Plan, *, every_samples: int, evaluation_s: float, checkpoint_s: float) -> Plan:
    """The plan with the time and energy of a run's evaluations and checkpoints, until its predicted samples.

    The power of an evaluation is taken as that of training, and that of writing a checkpoint as the board's at rest,
    if that is known. A plan that predicts no samples stays as it is, and so does one that changes its setting or waits.
    """
    samples, power_w = plan.expected_samples, plan.power_mean_w
    if samples is None or power_w is None or plan.caps or plan.schedule is not None:
        return plan
    number = max(1, math.ceil(samples / every_samples - 1e-6))
    rest_w = power_w if plan.rest_w is None else plan.rest_w
    planned = PlannedEvaluations(
        every_samples=every_samples,
        number=number,
        evaluation_s=evaluation_s,
        checkpoint_s=checkpoint_s,
        time_s=number * (evaluation_s + checkpoint_s),
        energy_j=number * (evaluation_s * power_w + checkpoint_s * rest_w),
    )
    return plan.model_copy(update={"evaluations": planned})
