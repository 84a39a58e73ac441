"""The user's loader with a variable batch size: the same samples in the same order, each once per pass."""

from __future__ import annotations

import itertools
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from wattune.errors import InputError, RecordError
from wattune.loop.micro_batching import samples_of
from wattune.loop.order_state import OrderState
from wattune.loop.rng_state import restore, states

OR_KEEP = "or keep_recipe=True, which uses the loader's batches unchanged"


CHUNK = 65_536
"""Indices whose checksum is taken at once: a resumed pass may skip very many."""


class Fetched(NamedTuple):
    """One batch of the loader: ``batch_size`` samples were requested, and it has ``samples``.

    ``order`` is a checksum of all indices that were drawn in this pass so far; 0 if they are not known.
    """

    data: Any
    samples: int
    batch_size: int
    order: int = 0


class Draws(Sampler[list[int]]):
    """Indices in the order of the user's sampler, in lists of the size that is set when a list is drawn.

    Workers fetch ahead: ``drawn`` has the requested size, the length and the checksum of each list until its batch
    arrives. With ``unit``, the pass ends at the sample from which the user's loader would drop the rest.
    """

    def __init__(self, sampler: Any, size: int, unit: int | None):
        self.sampler = sampler
        self.size = size
        self.unit = unit
        self.skip = 0
        self.on_skipped: Callable[[int], None] | None = None
        self.on_begin: Callable[[], None] = lambda: None
        self.drawn: deque[tuple[int, int, int]] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        self.drawn.clear()
        self.on_begin()
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
            batch = list(itertools.islice(indices, int(min(size, left))))
            if not batch:
                return
            left -= len(batch)
            order = _order(batch, order)
            self.drawn.append((size, len(batch), order))
            yield batch
        # The rest is dropped, but drawn, so that the sampler draws as many random numbers as in the user's own loop.
        deque(indices, maxlen=0)


class Checked:
    """The user's own batch sampler; ``orders``: the checksum of all indices up to each list that is drawn."""

    def __init__(self, sampler: Any):
        self.sampler = sampler
        self.orders: deque[int] = deque()

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        self.orders.clear()
        order = 0
        for batch in self.sampler:
            batch = list(batch) if isinstance(batch, Iterator) else batch
            order = _order(batch if isinstance(batch, Iterable) else [batch], order)
            self.orders.append(order)
            yield batch


def _order(indices: Iterable[Any], checksum: int) -> int:
    rest = iter(indices)
    while texts := "".join(map(str, itertools.islice(rest, CHUNK))):
        checksum = zlib.crc32(texts.encode(), checksum)
    return checksum


class BatchSource:
    """The batches of one loader, pass after pass.

    ``batch_size`` is the user's own, ``size`` that of the next batch to be drawn. A loader whose batch size cannot
    change is used unchanged, which needs ``keep``. ``whole``: the batch size of a loader that yields whole batches.
    Raises: InputError for a loader without a batch size, and without ``keep`` for one whose batch size cannot change.
    """

    def __init__(self, loader: Any, *, keep: bool, whole: int | None = None):
        self.loader = loader
        self.batch_size = _batch_size(loader, whole)
        reason = why_fixed(loader)
        if reason is not None and not keep:
            problem, value, hint = reason
            raise InputError(problem, value=value, hint=hint)
        self.samples_per_pass = _samples(loader)
        drops = self.samples_per_pass is not None and getattr(loader, "drop_last", False)
        rest = (self.samples_per_pass or 0) % self.batch_size if drops else 0
        self.trained_per_pass = None if self.samples_per_pass is None else self.samples_per_pass - rest
        """Samples of a pass that are trained on: with ``drop_last``, without the rest."""
        self._draws: Draws | None = None
        self._source: Any = loader
        if reason is None:
            self._draws = Draws(loader.sampler, self.batch_size, self.batch_size if loader.drop_last else None)
            self._source = remade(loader, batch_sampler=self._draws)
        self._checked: Checked | None = None
        is_plain = isinstance(loader, DataLoader) and all(
            getattr(type(loader), name) is getattr(DataLoader, name) for name in ("__iter__", "_get_iterator")
        )
        if self._draws is None and is_plain and loader.batch_size is None and loader.batch_sampler is not None:
            self._checked = Checked(loader.batch_sampler)
            self._source = remade(loader, batch_sampler=self._checked)
        self._batches: Iterator[Any] = iter(())
        self._random: list[Tensor] = []
        self._order_random: list[Tensor] = []
        self._positions = OrderState(loader)
        self._began_at: dict[str, Any] = {}
        self.in_pass = False
        """True from the begin of a pass to ``end_pass``, also where an error has ended it."""

    @property
    def size(self) -> int:
        """Samples of the next batch to be drawn; the loader's own batch size if it cannot change."""
        return self.batch_size if self._draws is None else self._draws.size

    @size.setter
    def size(self, value: int) -> None:
        if self._draws is not None:
            self._draws.size = value

    def order_state(self) -> dict[str, Any]:
        """Positions of the samplers that the order follows from, at the begin of the present pass or of the next."""
        return self._began_at if self.in_pass else self._positions.state_dict()

    def load_order_state(self, state: dict[str, Any]) -> None:
        """Continue from ``order_state``."""
        self._positions.load_state_dict(state)

    def start(
        self,
        *,
        skip: int = 0,
        random: list[Tensor] | None = None,
        order_random: list[Tensor] | None = None,
        order: int | None = None,
    ) -> None:
        """Begin a pass, ``skip`` samples into it and with the random states (``random`` and ``order_random``) of its
        begin, if they are given.

        ``order`` is the checksum of the samples to skip, None if it is not known. Raises: RecordError, with the first
        batch, if others were skipped: some samples would then be seen twice, and others not at all.
        """
        now = states(None)
        if random is not None:
            restore(self.loader, random)
        self._random, self._began_at = states(self.loader), self._positions.state_dict()
        self.in_pass = True

        def resume(skipped: int) -> None:  # the sampler has drawn its order: continue with the present random numbers
            restore(None, now)
            if order is not None and skipped != order:
                sampler = self.loader.sampler if self._draws is not None else self.loader.batch_sampler
                raise RecordError(
                    "the loader has another order than in the interrupted pass",
                    value=type(sampler).__name__,
                    allowed="one that depends only on the random state of torch, Python, NumPy or its own attributes",
                    hint="seed the sampler by the epoch, or restart the training run",
                )

        def draw() -> None:
            # A loader draws a seed for its workers first, unless they run since an earlier pass.
            if order_random:
                restore(self.loader, order_random)
            self._order_random = states(self.loader)

        if self._draws is not None:
            self._draws.on_begin = draw
            self._draws.skip, self._draws.on_skipped = skip, resume if random is not None else None
        self._batches = iter(self._source)
        if self._draws is None:
            at = 0
            while skip > 0 and (skipped := self.fetch()) is not None:
                skip, at = skip - skipped.samples, skipped.order
            if random is not None:
                resume(at if self._checked is not None else order or 0)

    def fetch(self) -> Fetched | None:
        """The next batch; None at the end of the pass."""
        data = next(self._batches, self)
        if data is self:
            return None
        if self._draws is None:
            order = 0 if self._checked is None else self._checked.orders.popleft()
            return Fetched(data, samples_of(data), self.batch_size, order)
        size, samples, order = self._draws.drawn.popleft()
        return Fetched(data, samples, size, order)

    @property
    def random(self) -> list[Tensor]:
        """The random state that the present pass began with, which its order depends on."""
        return self._random

    @property
    def order_random(self) -> list[Tensor]:
        """The random state with which the sampler drew the order of the present pass."""
        return self._order_random

    def stop(self) -> None:
        """Fetch no more in the present pass."""
        self._batches = iter(())

    def end_pass(self) -> None:
        """End the present pass, after which the next one begins."""
        self.in_pass = False


def _batch_size(loader: Any, whole: int | None) -> int:
    size = getattr(loader, "batch_size", None)
    if size is None:
        size = getattr(getattr(loader, "batch_sampler", None), "batch_size", whole)
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    if not hasattr(loader, "__iter__"):
        raise InputError("loader", value=type(loader).__name__, allowed="a torch DataLoader")
    raise InputError(
        "the loader has no batch size",
        value=type(loader).__name__,
        hint="use DataLoader(..., batch_size=N), or say what it yields with batch_size= and keep_recipe=True",
    )


def why_fixed(loader: Any) -> tuple[str, str, str] | None:
    """Problem, value and hint if the loader's batch size cannot change; None if it can."""
    if not isinstance(loader, DataLoader):
        hint = f"give a DataLoader over a data set with indices, {OR_KEEP}"
        return "the batch size of only a torch DataLoader can change, not of", type(loader).__name__, hint
    if isinstance(loader.dataset, IterableDataset):
        hint = f"give a data set with __getitem__ and __len__, {OR_KEEP}"
        return "an IterableDataset has no samples to choose from", type(loader.dataset).__name__, hint
    if loader.batch_size is None or type(loader.batch_sampler) is not BatchSampler:
        hint = f"give its order as sampler= with a batch_size=, {OR_KEEP}"
        return "the batch size of a custom batch_sampler cannot change", type(loader.batch_sampler).__name__, hint
    if type(loader).__iter__ is not DataLoader.__iter__:
        hint = f"give a plain DataLoader, {OR_KEEP}"
        return "the batch size of a loader with a custom __iter__ cannot change", type(loader).__name__, hint
    if loader.drop_last and not isinstance(loader.sampler, Sized):
        hint = f"give the sampler a __len__, {OR_KEEP}"
        return "with drop_last, the sampler needs a length", type(loader.sampler).__name__, hint
    return None


def _samples(loader: Any) -> int | None:
    order = loader.sampler if isinstance(loader, DataLoader) and loader.batch_sampler is not None else None
    if isinstance(order, Sized) and not isinstance(getattr(loader, "dataset", None), IterableDataset):
        return len(order)
    return None


def remade(loader: DataLoader[Any], **order: Any) -> DataLoader[Any]:
    """The same loader with another order: a ``batch_sampler``, or a ``sampler`` and a ``batch_size``."""
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
