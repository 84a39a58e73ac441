"""Sampler that limits the user's loader to Lightning's ``limit_train_batches``, in the order of its own sampler."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import DataLoader, Sampler

from wattune.errors import InputError


class LimitedSampler(Sampler[int]):
    """The first ``samples`` indices of a loader's sampler, or the first ``limit`` if that is not None.

    It draws one index more only if the user's loader would, since a sampler may draw random numbers for it.
    """

    def __init__(self, loader: DataLoader[Any], batches: float):
        if not isinstance(loader.sampler, Sized) or loader.batch_size is None:
            raise InputError(
                "a sampler without a length", value=type(loader.sampler).__name__, hint="give the sampler a __len__"
            )
        self.sampler = loader.sampler
        self.samples = int(min(len(loader.sampler), batches * loader.batch_size))
        self.limit: int | None = None
        draws_more = loader.num_workers > 0 or self.samples % loader.batch_size != 0
        self._draws_more = draws_more and self.samples == len(loader.sampler)

    def __len__(self) -> int:
        """Number of samples."""
        return self.samples

    def __iter__(self) -> Iterator[int]:
        """Indices of a new pass."""
        indices = iter(self.sampler)
        first = itertools.islice(indices, self.samples if self.limit is None else self.limit)
        # Chained iterators run in C: no Python bytecode per sample.
        return itertools.chain(first, _draw_one(indices)) if self._draws_more and self.limit is None else first


def _draw_one(indices: Iterator[int]) -> Iterator[int]:
    next(indices, None)
    yield from ()


def batches_in(loader: Any, limit: float) -> float:
    """Number of batches in a pass over a loader, at most ``limit``; inf if unknown."""
    try:
        return min(len(loader) if isinstance(loader, Sized) else math.inf, limit)
    except (TypeError, NotImplementedError):  # an IterableDataset without a length
        return limit
