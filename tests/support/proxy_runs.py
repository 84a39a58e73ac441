"""A workload that trains in a moment, with a proxy, importable by other processes; and a sweep to be killed."""

from __future__ import annotations

import time

from tests.support import training_runs
from tests.support.training_runs import DIVERGING, perceptron, points

from wattune.proxy import sweep
from wattune.workloads import Metric

__all__ = ["DIVERGING", "Metric", "perceptron", "points"]


def other_points():
    return points(4)


def workload(name="points", **changes):
    return training_runs.workload(name, **{"batch_sizes": (8, 16, 32), **changes})


def with_proxy(**changes):
    return workload(proxy=workload("proxy", data=other_points), **changes)


def slow_score(outputs, targets):
    time.sleep(0.05)
    return 0.0


def no_score(outputs, targets):
    return 0.0


def slow():
    """Never reaches its target, and takes a while for it: four runs of about 2 s."""
    metric = Metric("slow", "max", slow_score)
    return workload("slow", metric=metric, target=1.0, budget_samples=64 * 40, batch_sizes=(8, 16))


def sweep_slowly(folder):
    """What is interrupted and killed."""
    sweep(slow(), seeds=[0, 1], folder=folder, processes=2, progress=lambda *line: print(*line, flush=True))
