"""Small workloads of every kind, with callables that other processes can import."""

import numpy as np
import torch
from torch import nn

from wattune.workloads import Data, Loaders, Workload
from wattune.workloads.models import CharacterTransformer, small_cnn


def tiny_cnn(classes=3):
    return small_cnn(classes=classes, width=4, channels=1)


def tiny_transformer():
    return CharacterTransformer(vocabulary=11, length=8, layers=1, heads=2, width=8)


def images(samples=40, classes=3, size=8, seed=0, dtype=np.uint8):
    draws = np.random.default_rng(seed)
    return draws.integers(0, 256, (samples, 1, size, size)).astype(dtype), draws.integers(0, classes, samples)


def image_data():
    return Data(train=images(), test=images(20, seed=1))


def text_data():
    codes = np.random.default_rng(0).integers(0, 11, (30, 9))
    return Data((codes[:20, :8], codes[:20, 1:]), (codes[20:, :8], codes[20:, 1:]))


def number_data():
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    y = x.sum(1)
    return Data((x[:40], y[:40]), (x[40:], y[40:]))


def train_loader(batch_size, seed):
    x, y = images(42)
    order = np.random.default_rng(seed).permutation(len(x))
    for start in range(0, len(x), batch_size):
        picked = order[start : start + batch_size]
        yield torch.from_numpy(x[picked]).float() / 255, torch.from_numpy(y[picked])


def loaders():
    x, y = images(20, seed=1)
    x, y = torch.from_numpy(x).float() / 255, torch.from_numpy(y)
    return Loaders(train_loader, [(x[start : start + 8], y[start : start + 8]) for start in (0, 8, 16)])


def classification(**changes):
    return Workload("images", **{"model": tiny_cnn, "data": image_data, "input_shape": (1, 8, 8), **COMMON, **changes})


def language(**changes):
    values = {
        "model": tiny_transformer,
        "data": text_data,
        "input_shape": (8,),
        "task": "language",
        **COMMON,
        **changes,
    }
    return Workload("text", **values)


def regression(**changes):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    values = {"model": model, "data": number_data(), **COMMON, **changes}
    return Workload("numbers", task="regression", **values)


def with_loaders(**changes):
    return classification(data=loaders(), **changes)


COMMON = {"batch_sizes": (4, 8, 16), "budget_samples": 64}
KINDS = [classification, language, regression, with_loaders]
