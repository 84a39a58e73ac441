"""Work of evaluations and checkpoints on a device."""

from __future__ import annotations

from wattune.algorithms import TrainingAlgorithm
from wattune.devices import Device
from wattune.point import OperatingPoint
from wattune.records import StepWork


def counts_all(device: Device) -> bool:
    """True if evaluations and checkpoints take time on the device. A recording holds training steps only, and nothing
    is invented for what was not measured: a training run on it consists of its steps alone."""
    return device.kind != "replayed"


def evaluation_works(
    algorithm: TrainingAlgorithm, device: Device, point: OperatingPoint, samples: int
) -> tuple[StepWork, ...]:
    """The forward passes that evaluate ``samples`` samples; the last one takes the remainder.

    They are as large as those of training: they fit in the memory as training does, and larger ones would draw more
    power than the steps that were measured when the clock was chosen (7 % for ResNet-8 at batch size 4 on a
    simulated Jetson Nano, with forward passes of 256).
    """
    if not counts_all(device):
        return ()
    size = min(point.micro_batch_size, samples)
    full, rest = divmod(samples, size)
    return (algorithm.evaluation_work(size),) * full + ((algorithm.evaluation_work(rest),) if rest else ())
