"""Training and test data: arrays in memory, or the user's own loaders; augmentation of images."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from wattune.errors import WorkloadError
from wattune.workloads.values import attempt, flag, number, whole

Pair = tuple[Any, Any]
"""Inputs and targets; the first dimension counts samples."""


@dataclass(frozen=True, eq=False)
class Data:
    """Inputs and targets of the training and the test part, as numpy arrays or tensors; stored as tensors on the CPU.

    Inputs: uint8 images, scaled to 0..1 per batch; other numbers as they are; for text the character indices (N, L).
    Targets: whole numbers from 0 for classes and characters, floats for regression.
    Raises: WorkloadError for inconsistent shapes or types, NaN or infinite values, or negative labels.
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
    """The user's own loaders in place of arrays.

    ``train(batch_size, seed)`` makes one pass over the data in an order that depends on the two alone, and yields
    (inputs, targets); batches of another size (the last one) are skipped. ``test`` is iterated once per evaluation.
    """

    train: Callable[[int, int], Iterable[Pair]]
    test: Iterable[Pair]


DataSource = Data | Loaders | Callable[[], Any]
"""The data of a workload, or a callable without arguments that makes it when it is first needed."""


@dataclass(frozen=True, eq=False)
class Half:
    """A random half of both parts of some data, always the same one; called when it is first needed.

    Raises: WorkloadError for ``Loaders``, of which only the user knows the samples, and for less than two samples.
    """

    source: DataSource

    def __call__(self) -> Data:
        """The half."""
        data = load(self.source)
        if isinstance(data, Loaders):
            raise WorkloadError('proxy = "split"', value="Loaders", allowed="Data, arrays that can be split")
        return Data(*(_half(part, pair) for part, pair in (("training", data.train), ("test", data.test))))


def _half(part: str, pair: Pair) -> Pair:
    x, y = pair
    if len(x) < 2:
        raise WorkloadError(f'{part} samples to split, for proxy = "split"', value=len(x), allowed="2 or more")
    picked = torch.from_numpy(np.random.default_rng(0).permutation(len(x))[: len(x) // 2].copy())
    return x[picked], y[picked]


def load(source: DataSource) -> Data | Loaders:
    """Load the data from its source. Raises: WorkloadError."""
    if isinstance(source, (Data, Loaders)):
        return source
    data = attempt("the data cannot be loaded", source)
    if isinstance(data, (Data, Loaders)):
        return data
    if isinstance(data, tuple) and len(data) == 2:
        return Data(*data)
    raise WorkloadError(
        "result of the data callable",
        value=type(data).__name__,
        allowed="Data, Loaders, or ((x, y), (x_test, y_test))",
    )


def prepare(x: Tensor, y: Tensor, task: str) -> tuple[Tensor, Tensor]:
    """Convert stored samples for a model and a loss: uint8 images to 0..1, floats to float32, the rest to int64."""
    if x.dtype == torch.uint8 and task != "language":
        x = x.float() / 255
    return (x.float() if x.is_floating_point() else x.long()), (y.float() if task == "regression" else y.long())


class Order:
    """Order of ``samples`` samples in an endless stream: one permutation after the other.

    It depends on (seed, position) alone: a stream can start anywhere, and the batch size does not matter.
    """

    def __init__(self, samples: int, seed: int):
        self._samples = samples
        self._seed = seed
        self._pass = -1
        self._permutation = np.empty(0, dtype=np.int64)

    def take(self, start: int, count: int) -> Tensor:
        """Indices of the samples at the positions ``start`` to ``start + count``."""
        parts = []
        while count:
            number, offset = divmod(start, self._samples)
            if number != self._pass:
                self._permutation = np.random.default_rng([self._seed, number]).permutation(self._samples)
                self._pass = number
            part = self._permutation[offset : offset + count]
            parts.append(part)
            start, count = start + len(part), count - len(part)
        return torch.from_numpy(np.concatenate(parts))


def _tensor(array: Any, what: str) -> Tensor:
    try:
        tensor = torch.as_tensor(array).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise WorkloadError(
            f"{what} are not an array", value=type(array).__name__, allowed="a numpy array or tensor"
        ) from error
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise WorkloadError(f"type of the {what}", value=str(tensor.dtype), allowed="whole numbers or floats")
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise WorkloadError(f"{what} hold NaN or infinite values", hint="clean the data")
    return tensor


@dataclass(frozen=True)
class Augmentation:
    """Random changes of images (C, H, W): mirror, shift by up to ``shift`` pixels (filled with zeros), and add noise of
    standard deviation ``noise``.

    The draws depend only on the seed and on the sample's position in the stream: neither on its batch (draws shared
    by a batch would flatter small batches) nor on where a resumed run starts.
    """

    flip: bool = False
    shift: int = 0
    noise: float = 0.0

    def __post_init__(self) -> None:
        flag("flip of the augmentation", self.flip)
        whole("shift of the augmentation", self.shift, least=0)
        number("noise of the augmentation", self.noise, least=0)

    def check(self, shape: tuple[int, ...]) -> None:
        """Check that it can change samples of this shape. Raises: WorkloadError."""
        if (self.flip or self.shift) and len(shape) != 3:
            raise WorkloadError(
                "augmentation of samples of the shape", value=shape, allowed="images (channels, height, width)"
            )
        if self.shift and self.shift >= min(shape[1:]):
            raise WorkloadError(
                "shift of the augmentation", value=self.shift, allowed=f"less than the image, {shape[1:]}"
            )

    def apply(self, x: Tensor, *, seed: int, start: int) -> Tensor:
        """Changed copies of float samples (B, ...), the first at position ``start`` of the stream."""
        if not (self.flip or self.shift or self.noise):
            return x
        result = torch.empty_like(x)
        for index, sample in enumerate(x):
            # A counter-based generator (Philox) keyed by (seed, position) costs nothing to start anywhere.
            draws = np.random.Generator(np.random.Philox(key=[seed, start + index]))
            if self.flip and draws.random() < 0.5:
                sample = sample.flip(-1)
            if self.shift:
                down, right = (int(d) for d in draws.integers(-self.shift, self.shift + 1, size=2))
                sample = F.pad(sample, (right, -right, down, -down))
            if self.noise:
                normal = draws.standard_normal(tuple(sample.shape), dtype=np.float32)
                sample = sample + self.noise * torch.from_numpy(normal)
            result[index] = sample
        return result
