"""The user's loader, asked for batches of another size: the same samples in the same order, each once a pass."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sized
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from wattune.errors import InputError
from wattune.session.batch import samples_of

AS_IT_IS = "or keep_recipe=True, which takes the loader's batches as they come"


class Fetched(NamedTuple):
    """One batch of the loader: ``batch_size`` is what was asked for, ``samples`` what came."""

    data: Any
    samples: int
    batch_size: int


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
        self.on_skipped: Callable[[], None] | None = None
        self.drawn: deque[tuple[int, int]] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        self.drawn.clear()
        indices = iter(self.sampler)
        left: float = float("inf")
        if self.unit is not None:
            left = len(self.sampler) // self.unit * self.unit - self.skip
        if self.skip:
            next(itertools.islice(indices, self.skip - 1, self.skip), None)
        if self.on_skipped is not None:
            self.on_skipped()
        self.skip, self.on_skipped = 0, None
        while left > 0:
            size = self.size
            found = list(itertools.islice(indices, int(min(size, left))))
            if not found:
                return
            left -= len(found)
            self.drawn.append((size, len(found)))
            yield found
        # The rest is dropped, but drawn: with it, the sampler's random numbers are where the user's loop leaves them.
        deque(indices, maxlen=0)


class Feed:
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
            self._source = _resized(loader, self._draws)
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

    def start(self, *, skip: int = 0, random: list[Tensor] | None = None) -> None:
        """Begin a pass, ``skip`` samples into it and with the random numbers that it began with, where given."""
        now = self._generators()
        if random is not None:
            self._load(random)
        self._random = self._generators()

        def back() -> None:  # the sampler has drawn its order; what comes is drawn as if nothing had happened
            torch.set_rng_state(now[0])

        if self._draws is not None:
            self._draws.skip, self._draws.on_skipped = skip, back if random is not None else None
        self._batches = iter(self._source)
        if self._draws is None:
            while skip > 0:
                found = next(self._batches, None)
                skip -= samples_of(found) if found is not None else skip
            if random is not None:
                back()

    def fetch(self) -> Fetched | None:
        """The next batch; None at the end of the pass."""
        data = next(self._batches, self)
        if data is self:
            return None
        if self._draws is None:
            return Fetched(data, samples_of(data), self.batch_size)
        size, samples = self._draws.drawn.popleft()
        return Fetched(data, samples, size)

    @property
    def random(self) -> list[Tensor]:
        """The random numbers that the present pass began with: its order follows from them."""
        return self._random

    def stop(self) -> None:
        """Let go of the pass under way."""
        self._batches = iter(())

    def _generators(self) -> list[Tensor]:
        own = _generator(self.loader)
        return [torch.get_rng_state(), *([own.get_state()] if own is not None else [])]

    def _load(self, random: list[Tensor]) -> None:
        torch.set_rng_state(random[0])
        own = _generator(self.loader)
        if own is not None and len(random) > 1:
            own.set_state(random[1])


def _generator(loader: Any) -> torch.Generator | None:
    own = getattr(loader, "generator", None)
    own = own if own is not None else getattr(getattr(loader, "sampler", None), "generator", None)
    return own if isinstance(own, torch.Generator) else None


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


def _resized(loader: DataLoader[Any], draws: Draws) -> DataLoader[Any]:
    options: dict[str, Any] = {}
    if loader.num_workers:
        options = {
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    return DataLoader(
        loader.dataset,
        batch_sampler=draws,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
        **options,
    )
