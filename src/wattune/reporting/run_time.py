"""Wording of a run's time: the parts of the prediction, and why the run took longer or shorter."""

from __future__ import annotations

from wattune.records import Plan, TrainingRecord
from wattune.reporting.phrases import count, percent, seconds


def evaluations(plan: Plan) -> str:
    """The share of evaluations and checkpoints in the predicted time, and what fewer of them would save.

    Empty if they are not in the prediction.
    """
    planned, run_s = plan.evaluations, plan.run_s
    if planned is None or not run_s:
        return ""
    text = f"{planned.number} evaluations and checkpoints take {percent(planned.time_s / run_s)} of the predicted time"
    if planned.advised_every_samples is None or planned.would_save_s is None:
        return text
    return (
        f"{text}: `evaluate_every = {planned.advised_every_samples}` in place of {planned.every_samples} would save "
        f"about {seconds(planned.would_save_s)} ({percent(planned.would_save_s / run_s)})"
    )


def difference(plan: Plan, training: TrainingRecord) -> str:
    """The difference between the predicted and the measured time, split into samples, steps and evaluations.

    Empty if a part is unknown, if the run did not reach its target, and if it paused or trained at other settings too.
    """
    planned, run_s, expected = plan.evaluations, plan.run_s, plan.expected_samples
    taken_s = training.evaluation_s
    if planned is None or run_s is None or expected is None or plan.step_s is None or taken_s is None:
        return ""
    if not training.reached or training.paused_s or not training.samples:
        return ""
    taken_s += training.checkpoint_s or 0.0
    sample_s, steps_s = plan.step_s / plan.batch_size, training.time_s - taken_s
    parts = [
        (
            (training.samples - expected) * sample_s,
            f"for {count(training.samples)} samples in place of {count(expected)}",
        ),
        (steps_s - training.samples * sample_s, "for the time of each step"),
        (taken_s - planned.time_s, "for evaluations and checkpoints"),
    ]
    longer_s = training.time_s - run_s
    if abs(longer_s) < 0.005 * run_s:
        return f"It took as long as predicted: {_signed(parts)}"
    than = "longer" if longer_s > 0 else "less"
    return f"It took {seconds(abs(longer_s))} {than} than predicted: {_signed(parts)}"


def _signed(parts: list[tuple[float, str]]) -> str:
    least_s = max(abs(part_s) for part_s, _ in parts) / 1000  # below that it is noise of the arithmetic
    rounded = [(0.0 if abs(part_s) < least_s else part_s, why) for part_s, why in parts]
    return ", ".join(f"{'+' if part_s >= 0 else '-'}{seconds(abs(part_s))} {why}" for part_s, why in rounded)
