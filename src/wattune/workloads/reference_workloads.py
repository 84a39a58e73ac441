"""A fixed set of workloads that load a device in different ways, to find a clock safe under a cap for any workload."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from wattune.workloads.data import Data
from wattune.workloads.model import Model
from wattune.workloads.models import CharacterTransformer, resnet20
from wattune.workloads.workload import Workload

REFERENCE_VERSION = 1
"""Version of the set, raised with every change: clocks chosen from different sets are not comparable."""

BATCH_SIZE = 128


def reference_workloads() -> tuple[Workload, ...]:
    """Four workloads on random data, to be profiled and not trained, each with a batch size of 128.

    Small convolutions, a transformer, large matrix products, and large convolutions.
    """
    images, characters = (3, 32, 32), (64,)
    return (
        _workload("reference-resnet20", Model(resnet20), images),
        _workload("reference-transformer", Model(CharacterTransformer), characters, task="language"),
        _workload("reference-wide-mlp", Model(wide_mlp), (1024,)),
        _workload("reference-wide-cnn", Model(wide_cnn), images),
    )


def wide_mlp(*, inputs: int = 1024, width: int = 2048, classes: int = 10) -> nn.Sequential:
    """Four layers of large matrix products and almost nothing else (10 million parameters)."""
    layers: list[nn.Module] = []
    for size in (inputs, width, width):
        layers += [nn.Linear(size, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, classes))


def wide_cnn(*, channels: int = 3, width: int = 128, classes: int = 10) -> nn.Sequential:
    """Four 3x3 convolutions of many filters at the full size of the image, without normalisation between them."""
    layers: list[nn.Module] = []
    for size in (channels, width, width, width):
        layers += [nn.Conv2d(size, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def random_data(shape: tuple[int, ...], task: str) -> Data:
    """A batch of random samples to train on and one to test with."""
    draws = torch.Generator().manual_seed(0)
    if task == "language":
        x = torch.randint(96, (2 * BATCH_SIZE, *shape), generator=draws)
        y = torch.randint(96, (2 * BATCH_SIZE, *shape), generator=draws)
    else:
        x = torch.randn(2 * BATCH_SIZE, *shape, generator=draws)
        y = torch.randint(10, (2 * BATCH_SIZE,), generator=draws)
    return Data((x[:BATCH_SIZE], y[:BATCH_SIZE]), (x[BATCH_SIZE:], y[BATCH_SIZE:]))


def _workload(name: str, model: Model, shape: tuple[int, ...], *, task: str = "classification") -> Workload:
    return Workload(
        name,
        model=model,
        data=partial(random_data, shape, task),
        task=task,
        input_shape=shape,
        batch_sizes=(BATCH_SIZE,),
        budget_samples=BATCH_SIZE,
        host_s_per_sample=0.0,  # no host work, so that the device never idles between two steps
    )
