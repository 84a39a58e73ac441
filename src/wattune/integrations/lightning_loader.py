"""What Lightning's training loop fetches from: the user's loader, in micro-batches whose size may change."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from typing import Any

from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor
from typing_extensions import Self

from wattune.decisions.search import Row
from wattune.errors import InputError
from wattune.integrations.lightning_division import Part
from wattune.integrations.lightning_order import UpTo, batches_in
from wattune.session.batch import even, shapes, split
from wattune.session.feed import Feed, Fetched, remade
from wattune.session.fetching import Fetcher
from wattune.session.session import Session


class Passes(CombinedLoader):
    """The user's loader as Lightning sees it.

    Until ``attach`` it has the length of the user's own, in whose batches Lightning then reckons limits and intervals.
    Afterwards each pass goes on until its samples are used up.
    """

    def __init__(self, loader: Any, *, keep: bool):
        if isinstance(loader, CombinedLoader) and len(loader.flattened) == 1:
            loader = loader.flattened[0]
        if isinstance(loader, (CombinedLoader, list, tuple, dict)):
            raise InputError("several loaders to train on at once", allowed="one loader")
        super().__init__(loader, "max_size_cycle")
        self.position = 0
        """Samples of the present pass that were trained on."""
        self.order = 0
        """Checksum of them, in their order."""
        self.random: list[Tensor] = []
        """The random numbers that the present pass began with."""
        self.left: int | None = None
        """Micro-batches that the rest of the pass is expected to be made of, the present step included; None where
        that is what was expected before this step."""
        self.part: Part
        """The micro-batch that was fetched last."""
        self.step_samples = 0
        """Samples of its step."""
        self.wants_norms = False
        """Whether the norms of the gradients of its step would tell something new."""
        self._session: Session | None = None
        self._drawn = 0
        self._begun = False
        self._index = -1
        self._parts: Iterator[Part] = iter(())
        self._resumed: tuple[int, list[Tensor], int] | None = None
        self._keep = keep
        self._feed: Feed | None = None
        self._upto: UpTo | None = None
        self._most: int | None = None
        self._kind: Any = None
        self._fetched_s: float | None = None

    @property
    def loader(self) -> Any:
        """The user's own, as Lightning prepared it."""
        return self.flattened[0]

    @property
    def batches(self) -> float:
        """Batches of the user's own loader in a pass, as far as Lightning is to use them; inf where nobody knows."""
        return batches_in(self.loader, self.limits[0] if self.limits else math.inf)

    @property
    def feed(self) -> Feed:
        """The loader, asked for other sizes. Raises: InputError for one that cannot be, and would have to."""
        if self._feed is None:
            try:
                Feed(self.loader, keep=False)
            except InputError:
                if not self._keep:
                    raise
                self._feed = Feed(self.loader, keep=True)
            else:
                self._upto = UpTo(self.loader, self.batches)
                ordered = remade(self.loader, sampler=self._upto, batch_size=self.loader.batch_size)
                self._feed = Feed(ordered, keep=self._keep)
        return self._feed

    @property
    def samples(self) -> int | None:
        """Samples in a pass; None where nobody knows."""
        found = self.feed.samples_per_pass
        return found if self._upto is not None else None

    def attach(self, session: Session, parts_a_step: int) -> None:
        """Fetch for this session from now on. ``parts_a_step``: batches of the loader in a step of the user's own."""
        self._session = session
        self._fetcher = Fetcher(self.feed, session.governor)
        self._parts_a_step = parts_a_step

    def resume(self, position: int, random: list[Tensor], order: int) -> None:
        """Begin the next pass so many samples into it, in the order that follows from these random numbers.

        ``order``: see ``Feed.start``.
        """
        self._resumed = position, random, order

    def advance(self) -> None:
        """The step under way is over."""
        self.position, self.order = self.position + self.step_samples, self._drawn

    def cut(self, samples: int | None) -> None:
        """End the pass that begins after so many samples, where that is not None."""
        self._most = samples

    def arrived(self) -> None:
        """The micro-batch is where the model is."""
        if self._fetched_s is not None and self._session is not None:
            governor = self._session.governor
            governor.times.copying_s += governor.device.now_s() - self._fetched_s

    def end_pass(self) -> bool:
        """Let go of what was fetched and is not going to be trained on; whether the pass was complete."""
        if self._session is not None:
            self._session.drop_step()
            self._fetcher.clear()
        position = self._resumed[0] if self._resumed is not None else self.position
        self._parts, self._begun, self._resumed, self.position = iter(()), False, None, 0
        return position >= self.samples if self.samples is not None else self.part.ends_pass

    def expected(self) -> float:
        """Micro-batches of a whole pass at the point in force, as far as one can say; inf where nobody can."""
        if self._session is None or self.samples is None:
            return math.inf
        self.position = 0
        return self._expected(0, self._session.row)

    # ------------------------------------------------------------------------------------------- what Lightning calls

    def __len__(self) -> int:
        """In batches of the user's own; more than there can be where the pass says when it ends."""
        return sys.maxsize if self._session is not None or self.batches == math.inf else int(self.batches)

    def __iter__(self) -> Self:
        """A new pass, which begins with its first batch."""
        if self._begun and self._session is not None:
            self.end_pass()
        self._index = -1
        return self

    def __next__(self) -> Any:
        """The next micro-batch. Raises: SafetyStop, InputError, DeviceError."""
        assert self._session is not None  # attached before the first batch is fetched
        if not self._begun:
            self._start()
        self.part = next(self._parts)
        self._index += 1
        governor = self._session.governor
        governor.trial.samples = self.part.samples
        self._fetched_s = governor.device.now_s() if governor.on_cuda else None
        return self.part.data, self._index, 0

    # ------------------------------------------------------------------------------------------------------- the pass

    def _start(self) -> None:
        self.position, random, self.order = self._resumed or (0, [], 0)
        self._resumed, self._begun, self._kind = None, True, None
        if self._upto is not None:
            self._upto.most = self._most
        if self.position:
            self.feed.start(skip=self.position, random=random, order=self.order)
        else:
            self.feed.start()
        self.random = self.feed.random
        self._parts = self._pass()

    def _pass(self) -> Iterator[Part]:
        steps = self._whole_steps() if self._upto is not None else self._steps_as_they_are()
        for fetched, row, is_end in steps:
            yield from self._step(fetched, row, is_end)

    def _whole_steps(self) -> Iterator[tuple[list[Fetched], Row, bool]]:
        # Not one fetch more than is needed: a sampler that is asked for more may draw random numbers for that.
        position, whole = self.position, self.samples
        assert whole is not None
        samples = whole if self._most is None else min(whole, self._most)
        while position < samples and (fetched := self._fetcher.fetch()) is not None:
            position += fetched.samples
            yield [fetched], self._fetcher.row(fetched), position >= whole

    def _steps_as_they_are(self) -> Iterator[tuple[list[Fetched], Row, bool]]:
        assert self._session is not None
        batches: Iterator[Any] = iter(self._fetcher.fetch, None)
        if self.batches != math.inf:
            batches = itertools.islice(batches, max(0, int(self.batches) - self.position // self.feed.batch_size))
        group = list(itertools.islice(batches, self._parts_a_step))
        while group:
            following = list(itertools.islice(batches, self._parts_a_step))
            yield group, self._session.row, not following
            group = following

    def _step(self, fetched: list[Fetched], row: Row, is_end: bool) -> Iterator[Part]:
        session = self._session
        assert session is not None
        governor = session.governor
        samples = sum(one.samples for one in fetched)
        self.wants_norms = session.knowledge.wants(governor.steps)
        may_halve = self.wants_norms and governor.may_halve and not governor.prober.is_measuring
        pieces: list[tuple[Any, int]] = []
        for one in fetched:
            sizes = even(one.samples, row.micro_batch_size)
            if len(sizes) > 1 or not governor.checked:
                governor.check_parts(one.data, one.samples, row)
            if may_halve and len(fetched) == len(sizes) == 1 < samples:
                sizes = even(samples, -(-samples // 2))
            parts = split(one.data, one.samples, sizes) if len(sizes) > 1 else [one.data]
            pieces += zip(parts, sizes, strict=True)
        key = None
        if governor.book.counts:
            key = tuple(size for _, size in pieces), tuple(shapes(data) for data, _ in pieces)
        session.begin_step(samples, row, key=key, data=[one.data for one in fetched])
        self.step_samples, self._drawn = samples, fetched[-1].order
        kind = row, samples, len(pieces)
        self.left = None if kind == self._kind else len(pieces) + self._expected(samples, row)
        self._kind = kind
        last = len(pieces) - 1
        for index, (data, size) in enumerate(pieces):
            yield Part(data, size, size / samples, index == 0, index == last, is_end and index == last)

    def _expected(self, samples: int, row: Row) -> int:
        """Micro-batches of the steps after the present one."""
        total = self.samples
        if total is None:
            return 1
        full, rest = divmod(
            (total if self._most is None else min(total, self._most)) - self.position - samples, row.batch_size
        )
        parts = full * len(even(*row))
        return parts + (len(even(rest, row.micro_batch_size)) if rest else 0)
