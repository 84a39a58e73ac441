"""A workload that trains in a moment, with a proxy, importable by other processes; and a sweep to be killed."""

from __future__ import annotations

import time

import numpy as np
from torch import nn

from wattune.proxy import sweep
from wattune.workloads import Data, Metric, Model, OptimizerRule, Workload


def perceptron():
    return nn.Sequential(nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))


def points(shift=0):
    draws = np.random.default_rng(shift)
    x = draws.normal(size=(576, 12)).astype(np.float32)
    y = x[:, shift : shift + 4].argmax(1)
    return Data((x[:512], y[:512]), (x[512:], y[512:]))


def other_points():
    return points(4)


def workload(name="points", **changes):
    values = {
        "model": Model(perceptron),
        "data": points,
        "input_shape": (12,),
        "batch_sizes": (8, 16, 32),
        "evaluate_every": 64,
        "budget_samples": 2048,
        "target": 0.9,
        "optimizer": OptimizerRule("adam", learning_rate=1e-2, reference_batch_size=32),
    }
    return Workload(name, **{**values, **changes})


def with_proxy(**changes):
    return workload(proxy=workload("proxy", data=other_points), **changes)


def not_a_number(outputs, targets):
    return float("nan")


DIVERGING = Metric("broken", "max", not_a_number)


def slow_score(outputs, targets):
    time.sleep(0.05)
    return 0.0


def slow():
    """Never reaches its target, and takes a while for it: four runs of about 2 s."""
    metric = Metric("slow", "max", slow_score)
    return workload("slow", metric=metric, target=1.0, budget_samples=64 * 40, batch_sizes=(8, 16))


def sweep_slowly(folder):
    """What is interrupted and killed."""
    sweep(slow(), seeds=[0, 1], folder=folder, processes=2, progress=lambda *line: print(*line, flush=True))
