"""Evaluations and checkpoints in a plan's prediction, and how often to make them."""

from __future__ import annotations

import math

from wattune.records import Plan, PlannedEvaluations

CONSIDERABLE = 0.1
"""Share of the predicted time from which on evaluations are advised about."""

WORTH = 0.05
"""Share of the predicted time that fewer evaluations have to save to be advised."""

LEAST = 4
"""Evaluations until the target that always remain: with fewer, a run may go on long after its target."""


def with_evaluations(plan: Plan, *, every_samples: int, evaluation_s: float, checkpoint_s: float) -> Plan:
    """The plan with the time and energy of a run's evaluations and checkpoints, until its predicted samples.

    The power of an evaluation is taken as that of training, and that of writing a checkpoint as the board's at rest,
    if that is known. A plan that predicts no samples stays as it is, and so does one that changes its setting or waits.
    """
    samples, power_w = plan.expected_samples, plan.power_mean_w
    if samples is None or power_w is None or plan.caps or plan.schedule is not None:
        return plan
    number = _number(samples, every_samples)
    rest_w = power_w if plan.rest_w is None else plan.rest_w
    planned = PlannedEvaluations(
        every_samples=every_samples,
        number=number,
        evaluation_s=evaluation_s,
        checkpoint_s=checkpoint_s,
        time_s=number * (evaluation_s + checkpoint_s),
        energy_j=number * (evaluation_s * power_w + checkpoint_s * rest_w),
    )
    return plan.model_copy(update={"evaluations": _advised(plan, planned, samples)})


def _number(samples: float, every_samples: int) -> int:
    return max(1, math.ceil(samples / every_samples - 1e-6))


def _advised(plan: Plan, planned: PlannedEvaluations, samples: float) -> PlannedEvaluations:
    """With the multiple of today's distance that takes least time, if that is worth it.

    A target is noticed half a distance late on average, in which training goes on.
    """
    each_s, sample_s = planned.evaluation_s + planned.checkpoint_s, (plan.step_s or 0.0) / plan.batch_size
    run_s = (plan.predicted_s or 0.0) + planned.time_s
    if planned.time_s < CONSIDERABLE * run_s:
        return planned

    def cost_s(every_samples: int) -> float:
        return _number(samples, every_samples) * each_s + every_samples / 2 * sample_s

    multiples = (planned.every_samples * 2**power for power in range(30))
    allowed = [every for every in multiples if every <= max(planned.every_samples, samples / LEAST)]
    best = min(allowed, key=cost_s)
    saved_s = cost_s(planned.every_samples) - cost_s(best)
    if saved_s < WORTH * run_s:
        return planned
    return planned.model_copy(update={"advised_every_samples": best, "would_save_s": saved_s})
