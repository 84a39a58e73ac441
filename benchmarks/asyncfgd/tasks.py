"""Tasks to compare the algorithms on: networks from scratch, and the last layers of pre-trained ones.

Each task has three parts of its data: to train, to choose a learning rate by, and to judge. Digits are scikit-learn's;
images and texts are read from a folder with `tin100_32`, `cifar10_12k` (npz files) and `tinyshakespeare` (text).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from wattune.files import write_bytes
from wattune.workloads import Data, OptimizerRule, Workload
from wattune.workloads.models import CharacterTransformer
from wattune.workloads.npz import Npz
from wattune.workloads.texts import Text

WORK = Path("build") / "asyncfgd"
"""Folder of the pre-trained network and finished runs, which are reused."""

BATCH = 64
"""Batch size. Source: Zhao et al., AsyncFGD, NeurIPS 2023, section 6."""

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Parts:
    """Samples to train with, to choose by and to judge with."""

    train: Pair
    choose: Pair
    judge: Pair


@dataclass(frozen=True)
class Task:
    """A model and its training task: ``steps`` of ``BATCH`` samples, evaluated every ``every`` steps.

    ``cut``: the number of modules that a pipeline cuts it into. ``fine_tuning``: all layers but the trained ones are
    pre-trained.
    """

    name: str
    model: Callable[[], nn.Module]
    parts: Callable[[Path], Parts]
    steps: int
    every: int
    cut: int = 4
    task: str = "classification"
    fine_tuning: bool = False
    needs_data: bool = False

    def workload(self, data: Path, learning_rate: float, *, judge: bool) -> Workload:
        """The task at this learning rate, evaluated on the choosing or on the judging part."""
        parts = self.parts(data)
        return Workload(
            f"{self.name}",
            model=self.model,
            data=Data(parts.train, parts.judge if judge else parts.choose),
            task=self.task,
            batch_sizes=(BATCH,),
            budget_samples=self.steps * BATCH,
            optimizer=OptimizerRule("adam", learning_rate=learning_rate, reference_batch_size=BATCH, scaling="none"),
        )


# ------------------------------------------------------------------------------------------------------------- digits


@cache
def digits(_: Path) -> Parts:
    """Scikit-learn's digits, 1,077 + 360 + 360 of shape (1, 8, 8), standardised: forward gradients hardly learn
    otherwise."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x = torch.from_numpy(images[order]).float().reshape(-1, 1, 8, 8)
    x = (x - x[720:].mean()) / x[720:].std()
    y = torch.from_numpy(labels[order])
    return Parts((x[720:], y[720:]), (x[:360], y[:360]), (x[360:720], y[360:720]))


def perceptron() -> nn.Module:
    """Network of three hidden layers of 32: 4,522 parameters."""
    layers: list[nn.Module] = [nn.Flatten(), nn.Linear(64, 32), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Linear(32, 32), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(32, 10))


def convolutions() -> nn.Module:
    """Network of four normalised convolutions of 8 channels: about 2,500 parameters."""
    layers: list[nn.Module] = []
    channels = 1
    for _ in range(4):
        layers += [nn.Conv2d(channels, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU()]
        channels = 8
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d((2, 4)), nn.Flatten(), nn.Linear(64, 10))


# ---------------------------------------------------------------------------------------------------------- characters

LENGTH = 32


@cache
def characters(data: Path) -> Parts:
    """Pieces of Shakespeare; the choosing part is the end of the training text, the judging part from the test text."""
    folder = data / "tinyshakespeare"
    whole = Text(folder / "train.txt", LENGTH, test=folder / "test.txt", vocabulary="ascii")()
    (x, y), (tests, answers) = whole.train, whole.test
    cut = len(x) - 200
    return Parts((x[:cut], y[:cut]), (x[cut:], y[cut:]), (tests[:400], answers[:400]))


def transformer() -> nn.Module:
    """Transformer of two layers of width 32."""
    return CharacterTransformer(length=LENGTH, layers=2, heads=4, width=32)


# -------------------------------------------------------------------------------------------------- fine-tuned images

WIDTHS = (16, 32, 64)
PRETRAINING_STEPS = 2500
FINE_TUNING_SAMPLES, CHOICE_SAMPLES, JUDGED_SAMPLES = 5000, 1000, 3000


def body() -> nn.Sequential:
    """All layers but the last block: (3, 32, 32) -> (32, 8, 8)."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.GroupNorm(4, 32),
        nn.ReLU(),
    )


def block() -> nn.Sequential:
    """The last block: (32, 8, 8) -> 64 features."""
    return nn.Sequential(
        nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(4, 64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


@cache
def pretrained(data: Path) -> tuple[nn.Sequential, nn.Sequential]:
    """Body and block, pre-trained on the hundred classes of tin100_32: three minutes on one core, once."""
    path = WORK / "pretrained.safetensors"
    if not path.exists():
        write_bytes(path, save(_pretrain(data).state_dict()))
    first, last = body(), block()
    nn.Sequential(first, last).load_state_dict(load_file(path))
    return first.requires_grad_(False).eval(), last.requires_grad_(False).eval()


def _pretrain(data: Path) -> nn.Sequential:
    x, y = _images(data / "tin100_32").train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        features = nn.Sequential(body(), block())
        model = nn.Sequential(features, nn.Linear(64, 100))
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        for step in range(PRETRAINING_STEPS):
            chosen = torch.randint(len(x), (BATCH,))
            optimizer.param_groups[0]["lr"] = 2e-3 * (1 - step / PRETRAINING_STEPS)
            optimizer.zero_grad()
            images = x[chosen].float() / 255
            torch.autograd.backward(torch.nn.functional.cross_entropy(model(images), y[chosen]))
            optimizer.step()
    return features


def _images(folder: Path) -> Data:
    return Npz(folder / "train.npz", folder / "test.npz")()


@cache
def _features(data: Path, *, up_to_block: bool) -> Parts:
    first, last = pretrained(data)

    read = _images(data / "cifar10_12k")

    def features(images: Tensor, labels: Tensor, count: int) -> Pair:
        with torch.no_grad():
            parts = [first(part.float() / 255) for part in torch.split(images[:count], 500)]
            return torch.cat([last(part) for part in parts] if up_to_block else parts), labels[:count]

    (x, y), judge = features(*read.train, FINE_TUNING_SAMPLES + CHOICE_SAMPLES), features(*read.test, JUDGED_SAMPLES)
    if up_to_block:
        # Standardised, as a frozen network's features should be for forward gradients.
        mean, deviation = x.mean(0), x.std(0) + 1e-6
        x, judge = (x - mean) / deviation, ((judge[0] - mean) / deviation, judge[1])
    cut = CHOICE_SAMPLES
    return Parts((x[cut:], y[cut:]), (x[:cut], y[:cut]), judge)


def head_features(data: Path) -> Parts:
    """CIFAR-10 as 64 standardised features of the pre-trained network."""
    return _features(data, up_to_block=True)


def block_features(data: Path) -> Parts:
    """CIFAR-10 as the input of the pre-trained network's last block."""
    return _features(data, up_to_block=False)


def head() -> nn.Module:
    """A linear head with 650 parameters."""
    return nn.Sequential(nn.Linear(64, 10))


def tasks(data: Path | None) -> tuple[Task, ...]:
    """All tasks; without a folder of data, those that need no files."""

    def last_block() -> nn.Module:
        assert data is not None
        last = pretrained(data)[1]
        fresh = block()
        fresh.load_state_dict(last.state_dict())
        return nn.Sequential(*fresh, nn.Linear(64, 10))

    every = (
        Task("digits, perceptron", perceptron, digits, steps=3000, every=100),
        Task("digits, convolutions", convolutions, digits, steps=4500, every=100),
        Task("characters, transformer", transformer, characters, 500, 50, task="language", needs_data=True),
        Task("images, head", head, head_features, 8000, 100, 1, fine_tuning=True, needs_data=True),
        Task("images, last block and head", last_block, block_features, 1200, 50, 2, fine_tuning=True, needs_data=True),
    )
    return every if data else tuple(task for task in every if not task.needs_data)
