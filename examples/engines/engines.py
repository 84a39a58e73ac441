"""Adapt four frozen int8 engines, which have no backward pass, to digits that are turned. See README.md."""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

import wattune
from wattune.algorithms import open_algorithm

WIDTH, BATCH = 64, 64

METHODS = {
    "head": ("backprop:last=1", 1e-2),
    "last two parts": ("backprop:last=2", 3e-3),
    "AsyncFGD": ("async-fgd:cuts=2/4/6/7,perturb=differences,distance=0.02", 1e-2),
    "twin": ("backprop", 1e-2),
}
"""Name -> algorithm and learning rate. The twin runs the engines' layers in floats, so backprop reaches all of them."""


class Engine(nn.Module):
    """A layer in int8 as an accelerator runs it, in NumPy: it gives numbers, and no gradient."""

    def __init__(self, layer: nn.Linear, highest: float, wait_s: float = 0.0) -> None:
        super().__init__()
        weight = layer.weight.detach().numpy()
        self._step, weight_step = np.float32(highest / 127), float(np.abs(weight).max()) / 127
        # Whole numbers in floats: sums of 64 products of int8 are exact in them, and NumPy has fast products.
        self._weight = np.round(weight / weight_step).T.astype(np.float32)
        self._bias, self._scale = layer.bias.detach().numpy(), np.float32(self._step * weight_step)
        self._wait_s = wait_s

    def forward(self, x: Tensor) -> Tensor:
        """Quantize the inputs (n, 64), multiply in integers, and rectify."""
        if self._wait_s:
            time.sleep(self._wait_s)
        inputs = np.clip(np.round(x.detach().numpy() / self._step), -127, 127)
        return torch.from_numpy(np.maximum(inputs @ self._weight * self._scale + self._bias, 0))


class Adapter(nn.Module):
    """A scale and a shift of each of 64 values: 128 trained weights."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift the values."""
        return x * self.scale + self.shift


def digits(quarter_turns: int) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Digits of scikit-learn, turned: 1,297 to train on and 500 to judge on."""
    data = load_digits()
    images = np.rot90(data.images, quarter_turns, (1, 2)).reshape(-1, WIDTH).astype(np.float32) / 16
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:-500], order[-500:]
    return (images[train], data.target[train]), (images[test], data.target[test])


@functools.cache
def pretrained(seed: int) -> tuple[list[nn.Linear], list[float], nn.Linear]:
    """Train four layers and a head on upright digits; also return the highest input of each layer."""
    torch.manual_seed(seed)
    layers, head = [nn.Linear(WIDTH, WIDTH) for _ in range(4)], nn.Linear(WIDTH, 10)
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())), head)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = (torch.from_numpy(part) for part in digits(0)[0])
    for _ in range(1000):
        few = torch.randint(len(x), (BATCH,))
        optimizer.zero_grad()
        F.cross_entropy(model(x[few]), y[few]).backward()
        optimizer.step()
    highest = []
    with torch.no_grad():
        for layer in layers:
            highest.append(float(x.max()) * 1.5)  # adapted values may be larger
            x = layer(x).relu()
    return layers, highest, head


def adapted(seed: int, *, twin: bool = False, wait_s: float = 0.0) -> nn.Module:
    """Build the model to train: an adapter behind each frozen engine, and the head."""
    layers, highest, head = copy.deepcopy(pretrained(seed))
    parts: list[nn.Module] = []
    for layer, most in zip(layers, highest, strict=True):
        engine = nn.Sequential(layer.requires_grad_(False), nn.ReLU()) if twin else Engine(layer, most, wait_s)
        parts += [engine, Adapter()]
    return nn.Sequential(*parts, head)


def workload(seed: int, quarter_turns: int, learning_rate: float, **model: object) -> wattune.Workload:
    """The task: the pre-trained model of this seed, and digits that it has not seen turned."""
    return wattune.Workload(
        "engines",
        model=lambda: adapted(seed, **model),  # type: ignore[arg-type]
        data=wattune.Data(*digits(quarter_turns)),
        optimizer=wattune.OptimizerRule("adam", learning_rate=learning_rate, reference_batch_size=BATCH),
        batch_sizes=(BATCH,),
        budget_samples=BATCH * 3000,
    )


def accuracy(name: str, *, seed: int = 0, quarter_turns: int = 1, steps: int = 3000, **changed: object) -> float:
    """Train by one of the methods, and judge the mean of its weights over the second half of the steps.

    ``changed``: the method's ``spec`` or its ``rate``.
    """
    spec, rate = str(changed.get("spec", METHODS[name][0])), float(changed.get("rate", METHODS[name][1]))  # type: ignore[arg-type]
    task = workload(seed, quarter_turns, rate, twin=name == "twin")
    algorithm = open_algorithm(spec, task, BATCH, seed=seed)
    mean = AveragedModel(algorithm.module)
    for step, _ in enumerate(algorithm.run(itertools.islice(task.batches(BATCH, seed=seed), steps))):
        if step >= steps // 2 and step % 10 == 0:
            mean.update_parameters(algorithm.module)
    x, y = digits(quarter_turns)[1]
    with torch.no_grad():
        found = mean(torch.from_numpy(x)).argmax(1).numpy()
    return float((found == y).mean())


def main() -> None:
    """Train by each method, and print its accuracy."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=6000)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    for name, (spec, _) in METHODS.items():
        print(f"{name} ({spec}): {accuracy(name, seed=chosen.seed, steps=chosen.steps):.3f}", flush=True)


if __name__ == "__main__":
    main()
