"""The user's loader, asked for batches of another size: the same samples in the same order, each once a pass."""

from __future__ import annotations

import itertools
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from wattune.errors import InputError, RecordError
from wattune.online.micro_batching import samples_of
from wattune.online.rng_state import restore, states

AS_IT_IS = "or keep_recipe=True, which takes the loader's batches as they come"


class Fetched(NamedTuple):
    """One batch of the loader: ``batch_size`` is what was asked for, ``samples`` what came.

    ``order`` is a checksum of all that was drawn in this pass up to here; 0 where nobody sees what is drawn.
    """

    data: Any
    samples: int
    batch_size: int
    order: int = 0


class Draws(Sampler[list[int]]):
    """Indices in the order of the user's sampler, in lists of whatever size is wanted when a list is drawn.

    Workers fetch ahead: what is drawn keeps its size, which waits in ``drawn`` until the batch itself comes out.
    With ``unit``, the pass ends where the user's loader would drop the rest.
    """

    def __init__(self, sampler: Any, size: int, unit: int | None):
        self.sampler = sampler
        self.size = size
        self.unit = unit
        self.skip = 0
        self.on_skipped: Callable[[int], None] | None = None
        self.drawn: deque[tuple[int, int, int]] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        self.drawn.clear()
        indices = iter(self.sampler)
        left: float = float("inf")
        if self.unit is not None:
            left = len(self.sampler) // self.unit * self.unit - self.skip
        order = _order(itertools.islice(indices, self.skip), 0)
        if self.on_skipped is not None:
            self.on_skipped(order)
        self.skip, self.on_skipped = 0, None
        while left > 0:
            size = self.size
            found = list(itertools.islice(indices, int(min(size, left))))
            if not found:
                return
            left -= len(found)
            order = _order(found, order)
            self.drawn.append((size, len(found), order))
            yield found
        # The rest is dropped, but drawn: with it, the sampler's random numbers are where the user's loop leaves them.
        deque(indices, maxlen=0)


def _order(indices: Iterable[Any], before: int) -> int:
    for index in indices:
        before = zlib.crc32(str(index).encode(), before)
    return before


class BatchSource:
    """The batches of one loader, pass after pass.

    ``batch_size`` is the user's own and ``size`` what is wanted from the next batch that is drawn. A loader that
    cannot be resized is taken as it is, which needs ``keep``.
    Raises: InputError for a loader without a batch size, and for one that cannot be resized but would have to.
    """

    def __init__(self, loader: Any, *, keep: bool):
        self.loader = loader
        self.batch_size = _batch_size(loader)
        reason = _why_fixed(loader)
        if reason is not None and not keep:
            raise InputError(*reason[:1], value=reason[1], hint=reason[2])
        self.samples_per_pass = _samples(loader)
        self._draws: Draws | None = None
        self._source: Any = loader
        if reason is None:
            self._draws = Draws(loader.sampler, self.batch_size, self.batch_size if loader.drop_last else None)
            self._source = remade(loader, batch_sampler=self._draws)
        self._batches: Iterator[Any] = iter(())
        self._random: list[Tensor] = []

    @property
    def size(self) -> int:
        """Samples of the next batch that is drawn; the loader's own where it cannot be resized."""
        return self.batch_size if self._draws is None else self._draws.size

    @size.setter
    def size(self, value: int) -> None:
        if self._draws is not None:
            self._draws.size = value

    def start(self, *, skip: int = 0, random: list[Tensor] | None = None, order: int | None = None) -> None:
        """Begin a pass, ``skip`` samples into it and with the random numbers that it began with, where given.

        ``order`` is the checksum of what was skipped, None where nobody kept it. Raises: RecordError, with the first
        batch, where what is skipped is something else: some samples would then be seen twice, and others not at all.
        """
        now = states(None)
        if random is not None:
            restore(self.loader, random)
        self._random = states(self.loader)

        def back(skipped: int) -> None:  # the sampler has drawn its order; what comes is as if nothing had happened
            restore(None, now)
            if order is not None and skipped != order:
                raise RecordError(
                    "the loader gives another order than in the pass that was interrupted",
                    value=type(self.loader.sampler).__name__,
                    allowed="one that follows from the random numbers of torch, Python, NumPy or its generator",
                    hint="seed the sampler by the epoch, or begin the training anew",
                )

        if self._draws is not None:
            self._draws.skip, self._draws.on_skipped = skip, back if random is not None else None
        self._batches = iter(self._source)
        if self._draws is None:
            while skip > 0:
                found = next(self._batches, None)
                skip -= samples_of(found) if found is not None else skip
            if random is not None:
                restore(None, now)

    def fetch(self) -> Fetched | None:
        """The next batch; None at the end of the pass."""
        data = next(self._batches, self)
        if data is self:
            return None
        if self._draws is None:
            return Fetched(data, samples_of(data), self.batch_size)
        size, samples, order = self._draws.drawn.popleft()
        return Fetched(data, samples, size, order)

    @property
    def random(self) -> list[Tensor]:
        """The random numbers that the present pass began with: its order follows from them."""
        return self._random

    def stop(self) -> None:
        """Let go of the pass under way."""
        self._batches = iter(())


def _batch_size(loader: Any) -> int:
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    if not hasattr(loader, "__iter__"):
        raise InputError("loader", value=type(loader).__name__, allowed="a torch DataLoader")
    raise InputError(
        "the loader has no batch size", value=type(loader).__name__, hint="make it with DataLoader(..., batch_size=N)"
    )


def _why_fixed(loader: Any) -> tuple[str, str, str] | None:
    """What is wrong, with what, and what to do where the loader cannot be asked for other sizes."""
    if not isinstance(loader, DataLoader):
        hint = f"give a DataLoader over a data set with indices, {AS_IT_IS}"
        return "only a torch DataLoader can be resized, not", type(loader).__name__, hint
    if isinstance(loader.dataset, IterableDataset):
        hint = f"give a data set with __getitem__ and __len__, {AS_IT_IS}"
        return "an IterableDataset has no samples to choose from", type(loader.dataset).__name__, hint
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        hint = f"give its order as sampler= with a batch_size=, {AS_IT_IS}"
        return "a batch_sampler of one's own cannot be resized", type(loader.batch_sampler).__name__, hint
    if type(loader).__iter__ is not DataLoader.__iter__:
        hint = f"give a plain DataLoader, {AS_IT_IS}"
        return "a loader with an iteration of its own cannot be resized", type(loader).__name__, hint
    if loader.drop_last and not isinstance(loader.sampler, Sized):
        hint = f"give the sampler a __len__, {AS_IT_IS}"
        return "with drop_last, the sampler's length must be known", type(loader.sampler).__name__, hint
    return None


def _samples(loader: Any) -> int | None:
    order = loader.sampler if isinstance(loader, DataLoader) else None
    if isinstance(order, Sized) and not isinstance(getattr(loader, "dataset", None), IterableDataset):
        return len(order)
    return None


def remade(loader: DataLoader[Any], **order: Any) -> DataLoader[Any]:
    """The same loader in another order: a ``batch_sampler``, or a ``sampler`` and a ``batch_size``."""
    options = dict(order)
    if loader.num_workers:
        options |= {
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    return DataLoader(
        loader.dataset,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        **options,
    )
