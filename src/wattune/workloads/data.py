"""Training and test data: arrays in memory, or the user's own loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from wattune.errors import WorkloadError
from wattune.workloads.values import tried

Pair = tuple[Any, Any]
"""Inputs and targets; the first dimension counts samples."""


@dataclass(frozen=True, eq=False)
class Data:
    """Inputs and targets to train on and to test with, as numpy arrays or tensors; kept as tensors on the CPU.

    Inputs: uint8 images, read as 0..1 when a batch is made; other numbers as they are; for text the numbers of the
    characters (N, L). Targets: whole numbers from 0 for classes and characters, floats for a regression.
    Raises: WorkloadError for shapes or types that do not fit together, NaN or infinite values, negative labels.
    """

    train: Pair
    test: Pair

    def __post_init__(self) -> None:
        for part in ("train", "test"):
            pair = getattr(self, part)
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise WorkloadError(f"the {part} data", value=type(pair).__name__, allowed="(inputs, targets)")
            x, y = (_tensor(array, f"{part} {what}") for array, what in zip(pair, ("inputs", "targets"), strict=True))
            if x.ndim < 1 or y.ndim < 1 or len(x) != len(y) or len(x) == 0:
                shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
                raise WorkloadError(
                    f"shapes of the {part} inputs and targets",
                    value=shapes,
                    allowed="the same number of samples, at least 1",
                )
            if not y.is_floating_point() and int(y.min()) < 0:
                raise WorkloadError(f"a label of the {part} data", value=int(y.min()), allowed="0 and up")
            object.__setattr__(self, part, (x, y))
        for index, what in enumerate(("inputs", "targets")):
            one, other = self.train[index], self.test[index]
            if one.shape[1:] != other.shape[1:] or one.dtype != other.dtype:
                raise WorkloadError(
                    f"the {what} of a test sample",
                    value=f"{tuple(other.shape[1:])} {other.dtype}",
                    allowed=f"{tuple(one.shape[1:])} {one.dtype} as in the training data",
                )


@dataclass(frozen=True, eq=False)
class Loaders:
    """The user's own loaders instead of arrays.

    ``train(batch_size, seed)`` makes one pass over the data in an order that depends on the two alone, and yields
    (inputs, targets); batches of another size (the last one) are left out. ``test`` is iterated once an evaluation.
    """

    train: Callable[[int, int], Iterable[Pair]]
    test: Iterable[Pair]


DataSource = Data | Loaders | Callable[[], Any]
"""What a workload takes as data: the data, or a callable without arguments that makes it when it is first needed."""


def load(source: DataSource) -> Data | Loaders:
    """The data itself. Raises: WorkloadError."""
    if isinstance(source, (Data, Loaders)):
        return source
    made = tried("the data cannot be made", source)
    if isinstance(made, (Data, Loaders)):
        return made
    if isinstance(made, tuple) and len(made) == 2:
        return Data(*made)
    raise WorkloadError(
        "what the data callable gives",
        value=type(made).__name__,
        allowed="Data, Loaders, or ((x, y), (x_test, y_test))",
    )


def prepare(x: Tensor, y: Tensor, task: str) -> tuple[Tensor, Tensor]:
    """Stored samples as a model and a loss take them: uint8 images as 0..1, floats as float32, the rest as int64."""
    if x.dtype == torch.uint8 and task != "language":
        x = x.float() / 255
    return (x.float() if x.is_floating_point() else x.long()), (y.float() if task == "regression" else y.long())


class Order:
    """Which sample of ``samples`` stands at each position of an endless stream: one permutation after the other.

    It depends on (seed, position) alone, so a stream can start anywhere, and the batch size does not matter.
    """

    def __init__(self, samples: int, seed: int):
        self._samples = samples
        self._seed = seed
        self._pass = -1
        self._permutation = np.empty(0, dtype=np.int64)

    def take(self, start: int, count: int) -> Tensor:
        """Indices of the samples at the positions ``start`` to ``start + count``."""
        taken = []
        while count:
            number, offset = divmod(start, self._samples)
            if number != self._pass:
                self._permutation = np.random.default_rng([self._seed, number]).permutation(self._samples)
                self._pass = number
            part = self._permutation[offset : offset + count]
            taken.append(part)
            start, count = start + len(part), count - len(part)
        return torch.from_numpy(np.concatenate(taken))


def _tensor(array: Any, what: str) -> Tensor:
    try:
        tensor = torch.as_tensor(array).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise WorkloadError(
            f"{what} are no array", value=type(array).__name__, allowed="a numpy array or tensor"
        ) from error
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise WorkloadError(f"type of the {what}", value=str(tensor.dtype), allowed="whole numbers or floats")
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise WorkloadError(f"{what} hold NaN or infinite values", hint="clean the data")
    return tensor
