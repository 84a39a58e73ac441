"""A workload that trains in a moment, and boards for it."""

from __future__ import annotations

import numpy as np
from torch import nn

from wattune.devices import Fault, SimulatedBoard, SimulatedDevice, builtin_board
from wattune.records import EfficiencyPoint, Evaluation, LearningCurve, Plan, SampleEfficiency, TrainingRecord
from wattune.workloads import Data, Metric, Model, OptimizerRule, Workload


def perceptron():
    return nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))


def points(shift=0):
    draws = np.random.default_rng(shift)
    x = draws.normal(size=(576, 12)).astype(np.float32)
    y = x[:, shift : shift + 4].argmax(1)
    return Data((x[:512], y[:512]), (x[512:], y[512:]))


def workload(name="points", **changes):
    values = {
        "model": Model(perceptron),
        "data": points,
        "input_shape": (12,),
        "batch_sizes": (8, 32),
        "evaluate_every": 64,
        "budget_samples": 2048,
        "target": 0.9,
        "optimizer": OptimizerRule("adam", learning_rate=1e-2, reference_batch_size=32),
        "host_s_per_sample": 0.002,
    }
    return Workload(name, **{**values, **changes})


def board(*, noise_w=0.0, resolution_w=0.0, faults=(), **changes) -> SimulatedBoard:
    """A Jetson Nano with a perfect sensor unless noise is asked for."""
    nano = builtin_board("jetson-nano")
    sensor = nano.sensor.model_copy(update={"noise_w": noise_w, "resolution_w": resolution_w, **changes})
    return nano.model_copy(update={"sensor": sensor, "fault": tuple(faults)})


def spike(time_s=3.0, duration_s=2.0, gain=1.2):
    return Fault(kind="power", time_s=time_s, duration_s=duration_s, gain=gain)


def nano(seed=0, **changes) -> SimulatedDevice:
    return SimulatedDevice(board(**changes), seed=seed)


def plan(batch_size=8, clock_mhz=614.4, cap_w=None, **changes) -> Plan:
    return Plan(batch_size=batch_size, clock_mhz=clock_mhz, cap_w=cap_w, **changes)


def efficiency() -> SampleEfficiency:
    """The batch of 8 needs half the samples of that of 32."""
    points = (EfficiencyPoint(batch_size=b, relative_samples=r) for b, r in ((8, 0.5), (32, 1.0)))
    return SampleEfficiency(workload="points", reference_batch_size=32, points=tuple(points))


def trajectory(record: TrainingRecord) -> list[tuple[int, float, float | None]]:
    """Samples, metric and loss of each evaluation."""
    return [(e.samples, e.metric, e.loss) for e in record.evaluations]


def diverging_score(outputs, targets):
    return float("nan")


DIVERGING = Metric("broken", "max", diverging_score)


def long_workload():
    """What ``long_curve`` is a curve of."""
    return workload(evaluate_every=640)


def long_curve(seconds):
    """Evaluations for a little more than so much time on the Nano, at batch size 8 and 614.4 MHz, without a target."""
    grid = range(640, int(seconds / 0.0034) + 640, 640)
    return LearningCurve(
        workload="points",
        batch_size=8,
        seed=0,
        reached=False,
        samples=grid[-1],
        budget_samples=grid[-1],
        evaluations=tuple(Evaluation(samples=n, metric=0.5) for n in grid),
    )
