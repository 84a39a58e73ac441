"""The loader that Lightning's training loop fetches from: the user's, in micro-batches whose size may change."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Sized
from typing import Any

import torch.distributed as dist
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from typing_extensions import Self

from wattune.errors import InputError
from wattune.integrations.lightning_step import Part
from wattune.online.batch_source import BatchSource, Fetched, remade
from wattune.online.micro_batching import even, shapes, split
from wattune.online.prefetch import Prefetcher
from wattune.online.session import Session
from wattune.point import BatchShape


class LightningBatches(CombinedLoader):
    """The user's loader as Lightning sees it.

    Until ``attach`` it has the length of the user's, from which Lightning computes limits and intervals. Afterwards
    each pass ends when its samples are used up.
    """

    def __init__(self, loader: Any, *, keep: bool):
        if isinstance(loader, CombinedLoader) and len(loader.flattened) == 1:
            loader = loader.flattened[0]
        if isinstance(loader, (CombinedLoader, list, tuple, dict)):
            raise InputError("several training loaders", allowed="one loader")
        super().__init__(loader, "max_size_cycle")
        self.position = 0
        """Samples of the current pass that were trained on."""
        self.order = 0
        """Checksum of these samples, in their order."""
        self.random: list[Any] = []
        """State of the random number generators at the beginning of the pass; in a job of several ranks, a list of
        each."""
        self.left: int | None = None
        """Expected number of micro-batches in the rest of the pass, the current step included; None if unchanged
        since the step before."""
        self.part: Part
        """The micro-batch that was fetched last."""
        self.step_samples = 0
        """Samples of its step."""
        self.wants_norms = False
        """True if the gradient norms of its step would add information."""
        self._session: Session | None = None
        self._draw_order = 0
        self._has_begun = False
        self._index = -1
        self._parts: Iterator[Part] = iter(())
        self._resume_from: tuple[int, list[Tensor], int | None] | None = None
        self._keep = keep
        self._batch_source: BatchSource | None = None
        self._sampler: LimitedSampler | None = None
        self._limit: int | None = None
        self._kind: Any = None
        self._fetched_s: float | None = None

    @property
    def loader(self) -> Any:
        """The user's loader, as Lightning prepared it."""
        return self.flattened[0]

    @property
    def batches(self) -> float:
        """Batches per pass of the user's loader, as limited by Lightning; inf if unknown."""
        return batches_in(self.loader, self.limits[0] if self.limits else math.inf)

    @property
    def batch_source(self) -> BatchSource:
        """The loader with a variable batch size. Raises: InputError if it cannot vary but has to."""
        if self._batch_source is None:
            try:
                BatchSource(self.loader, keep=False)
            except InputError:
                if not self._keep:
                    raise
                self._batch_source = BatchSource(self.loader, keep=True)
            else:
                self._sampler = LimitedSampler(self.loader, self.batches)
                loader = remade(self.loader, sampler=self._sampler, batch_size=self.loader.batch_size)
                self._batch_source = BatchSource(loader, keep=self._keep)
        return self._batch_source

    @property
    def samples(self) -> int | None:
        """Samples in a pass; None if unknown."""
        samples = self.batch_source.samples_per_pass
        return samples if self._sampler is not None else None

    def attach(self, session: Session, parts_per_step: int) -> None:
        """Fetch for this session from now on. ``parts_per_step``: batches of the loader in one of the user's steps."""
        self._session = session
        self._fetcher = Prefetcher(self.batch_source, session.run)
        self._parts_per_step = parts_per_step

    def resume(self, position: int, random: list[Tensor], order: int | None) -> None:
        """Begin the next pass at sample ``position``, in the order given by the random number generators' state.

        ``order``: see ``BatchSource.start``.
        """
        self._resume_from = position, random, order

    def advance(self) -> None:
        """End the current step."""
        self.position, self.order = self.position + self.step_samples, self._draw_order

    def cut(self, samples: int | None) -> None:
        """End the next pass after this number of samples; None: after all of them."""
        self._limit = samples

    def arrived(self) -> None:
        """Count the time to copy the micro-batch to the model's device, which is over."""
        if self._fetched_s is not None and self._session is not None:
            run = self._session.run
            run.times.copying_s += run.device.now_s() - self._fetched_s

    def end_pass(self) -> bool:
        """Drop batches that will not be trained on; return True if the pass was complete."""
        if self._session is not None:
            self._session.drop_step()
            self._fetcher.clear()
        position = self._resume_from[0] if self._resume_from is not None else self.position
        self._parts, self._has_begun, self._resume_from, self.position = iter(()), False, None, 0
        return position >= self.samples if self.samples is not None else self.part.ends_pass

    def expected(self) -> float:
        """Expected number of micro-batches in a whole pass at the current point; inf if unknown."""
        if self._session is None or self.samples is None:
            return math.inf
        self.position = 0
        return self._expected(0, self._session.run.row)

    # ------------------------------------------------------------------------------------------ interface to Lightning

    def __len__(self) -> int:
        """Batches of the user's loader; a number that is never reached if the pass itself determines its end."""
        return sys.maxsize if self._session is not None or self.batches == math.inf else int(self.batches)

    def __iter__(self) -> Self:
        """Prepare a new pass, which begins with its first batch."""
        if self._has_begun and self._session is not None:
            self.end_pass()
        self._index = -1
        return self

    def __next__(self) -> Any:
        """The next micro-batch. Raises: SafetyStop, InputError, DeviceError."""
        assert self._session is not None  # attached before the first batch is fetched
        if not self._has_begun:
            self._start()
        self.part = next(self._parts)
        self._index += 1
        run = self._session.run
        run.fit_check.samples = self.part.samples
        self._fetched_s = run.device.now_s() if run.on_cuda else None
        return self.part.data, self._index, 0

    # ------------------------------------------------------------------------------------------------------- the pass

    def _start(self) -> None:
        self.position, random, order = self._resume_from or (0, [], 0)
        self.order = order or 0
        self._resume_from, self._has_begun, self._kind = None, True, None
        if self._sampler is not None:
            self._sampler.limit = self._limit
        if self.position:
            self.batch_source.start(skip=self.position, random=random, order=order)
        else:
            self.batch_source.start()
        self.random = self.batch_source.random
        if self._session is not None and self._session.size > 1:  # rank 0 saves the checkpoints of all
            self.random = [None] * self._session.size
            dist.all_gather_object(self.random, self.batch_source.random)
        self._parts = self._pass()

    def _pass(self) -> Iterator[Part]:
        steps = self._whole_steps() if self._sampler is not None else self._grouped_batches()
        for batches, row, is_end in steps:
            yield from self._step(batches, row, is_end)

    def _whole_steps(self) -> Iterator[tuple[list[Fetched], BatchShape, bool]]:
        # Never fetch more than needed: a sampler may draw random numbers for each further index.
        position, whole = self.position, self.samples
        assert whole is not None
        samples = whole if self._limit is None else min(whole, self._limit)
        while position < samples and (batches := self._fetcher.fetch()) is not None:
            position += batches.samples
            yield [batches], self._fetcher.row(batches), position >= whole

    def _grouped_batches(self) -> Iterator[tuple[list[Fetched], BatchShape, bool]]:
        assert self._session is not None
        batches: Iterator[Any] = iter(self._fetcher.fetch, None)
        if self.batches != math.inf:
            batches = itertools.islice(
                batches, max(0, int(self.batches) - self.position // self.batch_source.batch_size)
            )
        group = list(itertools.islice(batches, self._parts_per_step))
        while group:
            following = list(itertools.islice(batches, self._parts_per_step))
            yield group, self._fetcher.step.wanted, not following
            group = following

    def _step(self, batches: list[Fetched], row: BatchShape, is_end: bool) -> Iterator[Part]:
        session = self._session
        assert session is not None
        run = session.run
        samples = sum(one.samples for one in batches)
        self.wants_norms = session.sample_model.wants(run.steps)
        # The same on all ranks: Lightning exchanges messages between them with each micro-batch.
        may_halve = self.wants_norms and run.may_halve and not self._fetcher.step.measuring
        pieces: list[tuple[Any, int]] = []
        for one in batches:
            sizes = run.parts(one.samples, row.micro)
            if len(sizes) > 1 or not run.checked:
                run.check_parts(one.data, one.samples, row)
            if may_halve and len(batches) == len(sizes) == 1 < samples:
                sizes = even(samples, -(-samples // 2))
            parts = split(one.data, one.samples, sizes) if len(sizes) > 1 else [one.data]
            pieces += zip(parts, sizes, strict=True)
        key = None
        if run.counter.counts:
            key = tuple(size for _, size in pieces), tuple(shapes(data) for data, _ in pieces)
        session.begin_step(samples, row, key=key, data=[one.data for one in batches])
        self.step_samples, self._draw_order = samples, batches[-1].order
        kind = row, samples, len(pieces)
        self.left = None if kind == self._kind else len(pieces) + self._expected(samples, row)
        self._kind = kind
        last = len(pieces) - 1
        for index, (data, size) in enumerate(pieces):
            yield Part(data, size, size / samples, index == 0, index == last, is_end and index == last)

    def _expected(self, samples: int, row: BatchShape) -> int:
        """Expected number of micro-batches after the current step."""
        total = self.samples
        if total is None:
            return 1
        full, rest = divmod(
            (total if self._limit is None else min(total, self._limit)) - self.position - samples, row.batch
        )
        assert self._session is not None
        run = self._session.run
        parts = full * len(run.parts(*row))
        return parts + (len(run.parts(rest, row.micro)) if rest else 0)


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
