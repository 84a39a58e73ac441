"""Figures of a training run's record that follow from its plan, and the work of its evaluations."""

from __future__ import annotations

import math

from wattune.algorithms import TrainingAlgorithm
from wattune.devices import Device
from wattune.intensity import JOULES_PER_KWH, Intensity
from wattune.point import OperatingPoint
from wattune.records import CapInterval, Emissions, Plan, Schedule, StepWork

PAID_BACK_AGAINST = "largest batch, fixed clock"
"""The rule that needs no profile of the model: what profiling saves is its time less that of the plan."""


def of_the_grid(
    schedule: Schedule | None, intervals: tuple[CapInterval, ...], time_s: float
) -> dict[str, Emissions | float]:
    """The record's field on carbon or money, if the plan has a forecast of it."""
    if schedule is None:
        return {}
    cost = taken(schedule, intervals, time_s)
    if schedule.unit == "price_per_kwh":
        return {"energy_cost": cost}
    return {"emissions": Emissions(emissions=cost / 1000)}


def taken(schedule: Schedule, intervals: tuple[CapInterval, ...], time_s: float) -> float:
    """Grams of CO2, or money, of the energy of a run of ``time_s`` seconds, by the forecast of its schedule.

    Each interval counts with the mean of the forecast over its time; the last value holds after its end.
    """
    forecast = Intensity(
        tuple(one.time_s for one in schedule.forecast), tuple(one.value for one in schedule.forecast), schedule.unit
    )
    total = 0.0
    ends_s = [*(one.time_s for one in intervals[1:]), time_s]
    for one, end_s in zip(intervals, ends_s, strict=True):
        begin_s = one.time_s if one.cap_time_s is None else one.cap_time_s
        if (length_s := end_s - one.time_s) > 0:
            total += one.energy_j / JOULES_PER_KWH * forecast.integral(begin_s, begin_s + length_s) / length_s
    return total


def pays_after(plan: Plan, time_s: float) -> int | None:
    """Number of runs of this length after which profiling pays for itself; None if it never does."""
    other = next((b for b in plan.baselines if b.rule == PAID_BACK_AGAINST), None)
    if plan.profile_cost is None or other is None or other.speed_up is None or other.speed_up <= 1 or not time_s:
        return None
    return math.ceil(plan.profile_cost.time_s / (time_s * (other.speed_up - 1)))


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
