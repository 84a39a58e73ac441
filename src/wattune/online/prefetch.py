"""Which batch comes next: at once in training, a burst of them before a probe, so that it never waits."""

from __future__ import annotations

from collections import deque
from typing import Any

from wattune.algorithms.counting import aten
from wattune.online.batch_source import BatchSource, Fetched
from wattune.online.governor import Governor
from wattune.search.search import Row

BURST_BYTES = 256 * 2**20
"""Most that a burst may hold in memory, where the device does not say how little that has to be."""

BURST_SHARE = 0.05
"""Of the device's memory."""


class Prefetcher:
    """Takes batches from the feed, in its order, and asks it for the size that is wanted next.

    What workers have fetched ahead at another size is trained on as it is.
    """

    def __init__(self, feed: BatchSource, governor: Governor):
        self._feed = feed
        self._governor = governor
        self._queue: deque[Fetched] = deque()
        self._micro: dict[int, int] = {}
        self._is_first = True
        memory = governor.device.memory_bytes
        self._most_bytes = BURST_BYTES if memory is None else min(BURST_BYTES, BURST_SHARE * memory)

    def fetch(self) -> Fetched | None:
        """The next batch; None at the end of the pass."""
        prober = self._governor.prober
        wanted = prober.wanted.row.batch_size
        self._feed.size = wanted
        queue, times = self._queue, self._governor.times
        if not queue:
            found, waited_s = self._take()
            if found is None:
                return None
            queue.append(found)
            if prober.probing:
                times.fetching_s += waited_s
            elif self._is_first:
                times.starting_s += waited_s
            else:
                times.waiting_s += waited_s
            self._is_first = False
            if prober.probing and found.batch_size == wanted:
                self._fill(prober.steps_left(), wanted)
        return queue.popleft()

    def row(self, fetched: Fetched) -> Row:
        """How a batch is to be trained on: as wanted where it has that size, else as batches of its size were."""
        prober, size = self._governor.prober, fetched.batch_size
        for row in (prober.wanted.row, prober.in_force.row):
            if row.batch_size == size:
                self._micro[size] = row.micro_batch_size
                return row
        known = max(self._governor.trial.known, default=size)
        return Row(size, min(size, self._micro.get(size, known)))

    def clear(self) -> None:
        """The pass is over: what was fetched and not trained on is let go."""
        self._queue.clear()
        self._feed.stop()
        self._is_first = True

    def _fill(self, steps: int, wanted: int) -> None:
        queue = self._queue
        size = sum(tensor.nbytes for tensor in aten.tensors(_plain(queue[0].data)))
        steps = min(steps, int(self._most_bytes / size)) if size else steps
        while len(queue) < steps:
            found, waited_s = self._take()
            self._governor.times.fetching_s += waited_s
            if found is None:
                return
            queue.append(found)
            if found.batch_size != wanted:
                return

    def _take(self) -> tuple[Fetched | None, float]:
        device = self._governor.device
        begun_s = device.now_s()
        found = self._feed.fetch()
        return found, device.now_s() - begun_s


def _plain(data: Any) -> Any:
    return dict(data) if hasattr(data, "items") else data
