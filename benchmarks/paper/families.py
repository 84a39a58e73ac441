"""Networks of the measured part, each pre-trained once, and the data sets of each: small ones, and the paper's own.

A folder of data has ``tin100_32``, ``cifar10_12k`` and ``mnist_10k`` (train.npz and test.npz with ``images``, uint8
(N, 3, 32, 32) or (N, 28, 28), and ``labels``) and the texts ``wikitext2/{valid,test}.txt``,
``tinyshakespeare/{train,test}.txt`` and ``austen/austen_{train,test}.txt``. The digits are scikit-learn's, the third
text is Python's own asyncio library. For the small networks images are scaled down to 16 x 16, so that two cores can
train on them; optimizers, learning rates and their scaling are those of arXiv 2502.18323, section 5.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from benchmarks.paper.mobile_vision import MobileNetV2
from benchmarks.paper.models import ADAM, ADAMW, SIZES
from benchmarks.paper.published import MOBILENET_V2, RESNET18, TRANSFORMER
from wattune.workloads import Augmentation, Data, Model, OptimizerRule, Workload
from wattune.workloads.example import Digits
from wattune.workloads.models import CharacterTransformer, resnet8
from wattune.workloads.npz import Npz
from wattune.workloads.texts import Text

SIZE, TESTS = 16, 600
HELD_OUT = 20
"""Number of the hundred classes that are not pre-trained on, and form a separate data set."""

WAYS = ("own step times", "the step times of the paper's model")
"""Step times that the measured samples are combined with."""

LENGTH = 32


@dataclass(frozen=True)
class Pictures:
    """A source's images as float32 (N, 3, size, size) around 0, with at most ``TESTS`` test images."""

    source: Npz | Digits
    size: int

    def __call__(self) -> Data:
        """Read and convert. Raises: WorkloadError."""
        data = self.source()
        train, test = (self._resized(images) for images in (data.train[0], data.test[0][:TESTS]))
        return Data((train, data.train[1]), (test, data.test[1][:TESTS]))

    def _resized(self, images: torch.Tensor) -> torch.Tensor:
        resized = images.float() / 255 if images.dtype == torch.uint8 else images
        if resized.ndim == 3:
            resized = resized[:, None]
        resized = F.interpolate(resized, (self.size, self.size), mode="area").expand(-1, 3, -1, -1)
        return (4 * (resized - 0.47)).contiguous()


@dataclass(frozen=True)
class Texts:
    """A text in pieces, with evenly spaced test pieces."""

    source: Text

    def __call__(self) -> Data:
        """Read. Raises: WorkloadError."""
        data = self.source()
        some = np.linspace(0, len(data.test[0]) - 1, min(TESTS // 2, len(data.test[0]))).astype(int)
        return Data(data.train, (data.test[0][some], data.test[1][some]))


@dataclass(frozen=True)
class Sines:
    """Sums of two sines of random periods and phases with noise; the target is the value after ``LENGTH`` steps.

    ``shortest`` and ``longest`` are the periods in steps, ``noise`` a standard deviation.
    """

    shortest: float
    longest: float
    noise: float
    seed: int

    def __call__(self) -> Data:
        """Make 8,000 training and 1,000 test pieces."""
        draws = np.random.default_rng(self.seed)
        train, test = (self._pieces(draws, count) for count in (8000, 1000))
        return Data(train, test)

    def _pieces(self, draws: np.random.Generator, count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        periods = draws.uniform(self.shortest, self.longest, (count, 2, 1))
        phases = draws.uniform(0, 2 * np.pi, (count, 2, 1))
        values = np.sin(2 * np.pi * np.arange(LENGTH + 1) / periods + phases).sum(axis=1)
        values = (values + self.noise * draws.standard_normal(values.shape)).astype(np.float32)
        return values[:, :LENGTH, None], values[:, LENGTH:]


@dataclass(frozen=True)
class Family:
    """A network, its pre-training data, and its data sets, of which the first is the proxy of the tables.

    ``kind``: "images", "text" or "series". ``network(classes)`` makes it; ``classes`` by data set, empty if every set
    has the same outputs and the head is kept. It is pre-trained on ``pretraining_samples``. ``stands_for``: the paper's
    model of the same kind, whose step times its samples are combined with as well.
    """

    name: str
    kind: str
    stands_for: str | None
    network: Callable[[int], nn.Module]
    task: str
    input_shape: tuple[int, ...]
    pretraining: str
    pretraining_samples: int
    sets: tuple[str, ...]
    classes: Mapping[str, int]
    optimizer: OptimizerRule = ADAM
    batch_sizes: tuple[int, ...] = SIZES
    budget_samples: int = 12_288

    @property
    def ways(self) -> tuple[str, ...]:
        """The step times that its samples are combined with."""
        return WAYS[:1] if self.stands_for is None else WAYS

    @property
    def higher_is_better(self) -> bool:
        """True if the metric is an accuracy, False if it is a loss."""
        return self.task != "regression"

    def pretraining_workload(self, folder: Path) -> Workload:
        """The workload of its pre-training."""
        return self._workload(folder, self.pretraining, None, self.pretraining_samples)

    def workload(self, folder: Path, name: str, weights: Path | None) -> Workload:
        """Training on this data set from the pre-trained ``weights``, to the end of the budget."""
        return self._workload(folder, name, weights, self.budget_samples)

    def _workload(self, folder: Path, name: str, weights: Path | None, budget: int) -> Workload:
        new_head = ("fc",) if weights is not None and self.classes else ()
        return Workload(
            f"{self.name} on {name}",
            model=Model(partial(self.network, self.classes.get(name, 0)), weights=weights, reinitialise=new_head),
            data=_sources(folder, max(self.input_shape))[name],
            input_shape=self.input_shape,
            task=self.task,
            batch_sizes=self.batch_sizes,
            optimizer=self.optimizer,
            budget_samples=budget,
            augmentation=Augmentation(flip=name in PHOTOGRAPHS, shift=1) if self.kind == "images" else Augmentation(),
        )


def _sources(folder: Path, size: int) -> dict[str, Callable[[], Data]]:
    """The data sets, as images of ``size`` x ``size`` and texts of ``size`` characters."""

    def pictures(name: str, classes: range | None = None) -> Pictures:
        at = folder / name
        npz = Npz(at / "train.npz", at / "test.npz", classes=None if classes is None else tuple(classes))
        return Pictures(npz, size)

    def text(train: Path | tuple[Path, ...], test: Path | None = None) -> Texts:
        return Texts(Text(train, size, test=test, vocabulary="ascii"))

    library = Path(asyncio.__file__).parent
    return {
        "hundred classes": pictures("tin100_32", range(100 - HELD_OUT)),
        "held-out classes": pictures("tin100_32", range(100 - HELD_OUT, 100)),
        "CIFAR-10, classes 0-4": pictures("cifar10_12k", range(5)),
        "CIFAR-10, classes 5-9": pictures("cifar10_12k", range(5, 10)),
        "MNIST": pictures("mnist_10k"),
        "digits": Pictures(Digits(size=size), size),
        "WikiText-2": text(folder / "wikitext2" / "valid.txt", folder / "wikitext2" / "test.txt"),
        "Shakespeare": text(folder / "tinyshakespeare" / "train.txt", folder / "tinyshakespeare" / "test.txt"),
        "Austen": text(folder / "austen" / "austen_train.txt", folder / "austen" / "austen_test.txt"),
        "Python's asyncio": text(tuple(sorted(library.glob("*.py")))),
        "mixed periods": Sines(4.0, 40.0, 0.1, seed=0),
        "short periods": Sines(4.0, 8.0, 0.1, seed=1),
        "long periods": Sines(12.0, 40.0, 0.1, seed=2),
        "noisy periods": Sines(6.0, 20.0, 0.3, seed=3),
    }


PHOTOGRAPHS = ("hundred classes", "held-out classes", "CIFAR-10, classes 0-4", "CIFAR-10, classes 5-9")
"""Data sets whose images may be mirrored."""

KINSHIP = (PHOTOGRAPHS, ("MNIST", "digits"), ("WikiText-2", "Shakespeare", "Austen", "Python's asyncio"))
"""Groups of data sets that are proxies for each other; all series are one group."""

CLASSES = {
    "hundred classes": 100 - HELD_OUT,
    "held-out classes": HELD_OUT,
    "CIFAR-10, classes 0-4": 5,
    "CIFAR-10, classes 5-9": 5,
    "MNIST": 10,
    "digits": 10,
}


def _resnet8(classes: int) -> nn.Module:
    return resnet8(classes=classes)


def _mobilenet(classes: int) -> nn.Module:
    return MobileNetV2(classes=classes, width=0.25)


def _transformer(_: int) -> nn.Module:
    return CharacterTransformer(layers=2, heads=4, width=64, length=LENGTH)


class Gru(nn.Module):
    """Gated recurrent units, 32 wide, and a linear head on their last state, to forecast a value of a series."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(1, 32, batch_first=True)
        self.fc = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, L, 1) -> (B, 1)."""
        return cast(torch.Tensor, self.fc(self.gru(x)[0][:, -1]))


def _gru(_: int) -> nn.Module:
    return Gru()


FAMILIES = (
    Family(
        name="ResNet-8",
        kind="images",
        stands_for=RESNET18,
        network=_resnet8,
        task="classification",
        input_shape=(3, SIZE, SIZE),
        pretraining="hundred classes",
        pretraining_samples=150_000,
        sets=("CIFAR-10, classes 0-4", "CIFAR-10, classes 5-9", "held-out classes", "MNIST", "digits"),
        classes=CLASSES,
    ),
    Family(
        name="transformer, 2 layers",
        kind="text",
        stands_for=TRANSFORMER,
        network=_transformer,
        task="language",
        input_shape=(LENGTH,),
        pretraining="WikiText-2",
        pretraining_samples=100_000,
        sets=("Shakespeare", "Austen", "Python's asyncio"),
        classes={},
        optimizer=ADAMW,
    ),
    Family(
        name="GRU",
        kind="series",
        stands_for=None,
        network=_gru,
        task="regression",
        input_shape=(LENGTH, 1),
        pretraining="mixed periods",
        pretraining_samples=60_000,
        sets=("short periods", "long periods", "noisy periods"),
        classes={},
    ),
    Family(
        name="MobileNetV2, quarter width",
        kind="images",
        stands_for=MOBILENET_V2,
        network=_mobilenet,
        task="classification",
        input_shape=(3, SIZE, SIZE),
        pretraining="hundred classes",
        pretraining_samples=60_000,
        sets=("CIFAR-10, classes 0-4", "CIFAR-10, classes 5-9", "held-out classes"),
        classes=CLASSES,
        batch_sizes=SIZES[:-1],
        budget_samples=8192,
    ),
)
