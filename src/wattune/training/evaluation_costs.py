"""The time that evaluations and checkpoints take at a plan's point, measured before training."""

from __future__ import annotations

import itertools

import torch

from wattune.algorithms import memory_errors, open_algorithm, state_bytes
from wattune.devices import Device
from wattune.power.capped_run import CappedRun
from wattune.records import Plan
from wattune.training.loop import WRITE_BYTES_PER_S
from wattune.training.training_record import counts_all, evaluation_works
from wattune.workloads import Workload

PASSES = 3
"""Forward passes that are timed on a device that executes them, after one that warms it up."""


def evaluation_costs(device: Device, workload: Workload, plan: Plan) -> tuple[float, float] | None:
    """Seconds of one evaluation and of one checkpoint at the plan's point, under its cap.

    A device that executes steps takes a few forward passes of training's size, from which those of the whole test part
    are forecast; a simulated one goes through all of them. The time of a checkpoint is forecast from its size. None if
    neither counts on this device, see ``counts_all``.

    Raises: WorkloadError, InputError, DeviceError.
    """
    if not counts_all(device):
        return None
    algorithm = open_algorithm(
        plan.algorithm,
        workload.without_weights(),
        plan.batch_size,
        micro_batch_size=plan.micro_batch_size,
        on=device.trains_on,
    )
    batch = workload.example(plan.batch_size)
    next(algorithm.run(itertools.repeat(batch)))  # the optimizer has its state after the first step
    checkpoint_s = state_bytes(algorithm.state_dict()) / WRITE_BYTES_PER_S
    works = evaluation_works(algorithm, device, plan.point, workload.test_samples)
    with CappedRun(device, plan.limit, plan.knobs) as run, run.metered():
        if not device.executes_steps:
            begun_s = device.now_s()
            for work in works:
                with device.step(work):
                    pass
            return device.now_s() - begun_s, checkpoint_s
        inputs = batch[0][: works[0].samples].to(next(algorithm.module.parameters()).device)
        algorithm.module.eval()
        with torch.no_grad(), memory_errors("an evaluation"):
            for done in range(1 + PASSES):
                if done == 1:
                    begun_s = device.now_s()
                with device.step(works[0]):
                    algorithm.module(inputs).float().cpu()
        each_s = (device.now_s() - begun_s) / PASSES
    return each_s * workload.test_samples / works[0].samples, checkpoint_s
