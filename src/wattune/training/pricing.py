"""Time and energy of a recorded training run on a device, at any point: nothing is trained again."""

from __future__ import annotations

import itertools

from wattune.algorithms import Step, open_algorithm
from wattune.cap_source import CapSource
from wattune.devices import Device
from wattune.errors import InputError, RecordError
from wattune.point import OperatingPoint
from wattune.records import LearningCurve, Plan, TrainingRecord
from wattune.training.loop import TrainingLoop
from wattune.training.training_record import counts_all
from wattune.workloads import Workload


def price(
    curve: LearningCurve,
    device: Device,
    workload: Workload,
    point: OperatingPoint,
    *,
    cap_w: float | None,
    cap: CapSource | None = None,
    settings: Plan | None = None,
) -> TrainingRecord:
    """The record of the training that gave ``curve``, had it run on ``device`` at ``point`` under ``cap_w`` watts.

    ``cap``: a cap that changes, of which ``cap_w`` is the highest; ``settings``: the plan whose settings it follows.

    It goes through the same loop as a training run with checkpoints, on the device's virtual time: steps, evaluations,
    checkpoints, meter and limiter are the same, only the metric comes from the curve.

    Raises: InputError for a device that executes steps itself, or another batch size than the curve's; RecordError
    for a curve that was evaluated at other sample counts than the workload's; DeviceError.
    """
    if device.executes_steps:
        raise InputError("a recorded training run cannot be priced on a real board", value=device.name)
    if point.batch_size != curve.batch_size:
        raise InputError("batch size of the point", value=point.batch_size, allowed=f"{curve.batch_size}, the curve's")
    if not curve.evaluations:
        raise RecordError(f"the learning curve of {curve.workload} has no evaluation", allowed="at least one")
    plan = (settings or Plan(**point.fields(), cap_w=cap_w)).model_copy(
        update={
            "algorithm": curve.algorithm,
            "device": device.name,
            "workload": curve.workload,
            "target": curve.target,
        }
    )
    algorithm = open_algorithm(
        curve.algorithm, workload, point.batch_size, micro_batch_size=point.micro_batch_size, seed=curve.seed
    )
    metrics = (evaluation.metric for evaluation in curve.evaluations)

    def next_metric() -> float:
        if (metric := next(metrics, None)) is None:
            raise _other_grid(curve)
        return metric

    loop = TrainingLoop(
        device,
        workload,
        plan,
        algorithm,
        steps=lambda batches: (Step(samples=curve.batch_size, loss=0.0) for _ in batches),
        batches=lambda samples: itertools.repeat((None, None)),
        evaluate=next_metric,
        budget_samples=curve.evaluations[-1].samples,
        checkpoint_bytes=lambda: curve.state_bytes if counts_all(device) else None,
        cap=cap,
    )
    loop.run()
    record = loop.record(seed=curve.seed, data=curve.provenance.data)
    evaluated_samples = [evaluation.samples for evaluation in record.evaluations]
    if evaluated_samples != [evaluation.samples for evaluation in curve.evaluations[: len(evaluated_samples)]]:
        raise _other_grid(curve)
    evaluations = tuple(
        evaluation.model_copy(update={"loss": original.loss})
        for evaluation, original in zip(record.evaluations, curve.evaluations, strict=False)
    )
    return record.model_copy(update={"evaluations": evaluations})


def _other_grid(curve: LearningCurve) -> RecordError:
    return RecordError(
        f"the learning curve of {curve.workload}, batch size {curve.batch_size}, was evaluated at other samples than "
        "the workload says",
        hint="train it again",
    )
