"""A workload that several runs can train as one program, and models that rule that out; importable by processes."""

from __future__ import annotations

import torch
from tests.support import proxy_runs
from tests.support.proxy_runs import points
from torch import nn
from torch.nn import functional as F

__all__ = ["points", "workload"]


def perceptron():
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))


def workload(**changes):
    return proxy_runs.workload("stackable", **{"model": perceptron, **changes})


def diverging_with_seed_1():
    model = perceptron()
    if torch.initial_seed() == 1:
        nn.init.constant_(model[2].bias, float("inf"))
    return model


def convolutions():
    return nn.Sequential(
        nn.Unflatten(1, (1, 3, 4)), nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)
    )


def in_place():
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(inplace=True), nn.Linear(32, 4))


def normalised():
    return nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))


def dropping():
    return nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.1), nn.Linear(8, 4))


class Tied(nn.Module):
    """Two layers that share a weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 4)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.fc(self.second(F.relu(self.first(x))))


class Branching(nn.Module):
    """Another layer for some batches."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(12, 4), nn.Linear(12, 4)

    def forward(self, x):
        return self.first(x) if x.mean() > 0 else self.second(x)


class Annealed:
    """A loss whose scale depends on the number of calls, which a trace does not see."""

    def __init__(self):
        self.calls = 0

    def __call__(self, output, target):
        self.calls += 1
        return F.cross_entropy(output, target) / self.calls
