"""How much of the user's loader Lightning is to use, in the order of its sampler."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sized
from typing import Any

from torch.utils.data import DataLoader, Sampler

from wattune.errors import InputError


class UpTo(Sampler[int]):
    """The first ``samples`` of a loader's sampler, ``most`` of them where that is not None.

    It is asked for more only where the user's own loader would ask it, since a sampler may draw random numbers then.
    """

    def __init__(self, loader: DataLoader[Any], batches: float):
        if not isinstance(loader.sampler, Sized) or loader.batch_size is None:
            raise InputError(
                "a sampler without a length", value=type(loader.sampler).__name__, hint="give the sampler a __len__"
            )
        self.sampler = loader.sampler
        self.samples = int(min(len(loader.sampler), batches * loader.batch_size))
        self.most: int | None = None
        is_asked = loader.num_workers > 0 or self.samples % loader.batch_size != 0
        self._is_asked = is_asked and self.samples == len(loader.sampler)

    def __len__(self) -> int:
        """How many."""
        return self.samples

    def __iter__(self) -> Iterator[int]:
        """A new pass."""
        indices = iter(self.sampler)
        first = itertools.islice(indices, self.samples if self.most is None else self.most)
        # Without a step of Python's own for each sample.
        return itertools.chain(first, _asked(indices)) if self._is_asked and self.most is None else first


def _asked(indices: Iterator[int]) -> Iterator[int]:
    next(indices, None)
    yield from ()


def batches_in(loader: Any, limit: float) -> float:
    """Batches of a loader in a pass, at most ``limit``; inf where nobody knows."""
    try:
        return min(len(loader) if isinstance(loader, Sized) else math.inf, limit)
    except (TypeError, NotImplementedError):  # of an IterableDataset without a length
        return limit
