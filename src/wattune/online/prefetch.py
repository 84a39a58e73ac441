"""Which batch comes next: at once in training, a burst of them before a probe, so that it never waits."""

from __future__ import annotations

from collections import deque
from typing import Any

from wattune.algorithms.counting import aten
from wattune.online.batch_source import BatchSource, Fetched
from wattune.online.session_run import SessionRun
from wattune.search.search import Row

BURST_BYTES = 256 * 2**20
"""Most that a burst may hold in memory, where the device does not say how little that has to be."""

BURST_SHARE = 0.05
"""Of the device's memory."""


class Prefetcher:
    """Takes batches from the batch_source, in its order, and asks it for the size that is wanted next.

    What workers have fetched ahead at another size is trained on as it is.
    """

    def __init__(self, batch_source: BatchSource, run: SessionRun):
        self._batch_source = batch_source
        self._run = run
        self._queue: deque[Fetched] = deque()
        self._micro: dict[int, int] = {}
        self._is_first = True
        memory = run.device.memory_bytes
        self._most_bytes = BURST_BYTES if memory is None else min(BURST_BYTES, BURST_SHARE * memory)

    def fetch(self) -> Fetched | None:
        """The next batch; None at the end of the pass."""
        explorer = self._run.explorer
        wanted = explorer.wanted.row.batch_size
        self._batch_source.size = wanted
        queue, times = self._queue, self._run.times
        if not queue:
            found, waited_s = self._take()
            if found is None:
                return None
            queue.append(found)
            if explorer.probing:
                times.fetching_s += waited_s
            elif self._is_first:
                times.starting_s += waited_s
            else:
                times.waiting_s += waited_s
            self._is_first = False
            if explorer.probing and found.batch_size == wanted:
                self._fill(explorer.steps_left(), wanted)
        return queue.popleft()

    def row(self, fetched: Fetched) -> Row:
        """How a batch is to be trained on: as wanted where it has that size, else as batches of its size were."""
        explorer, size = self._run.explorer, fetched.batch_size
        for row in (explorer.wanted.row, explorer.current.row):
            if row.batch_size == size:
                self._micro[size] = row.micro_batch_size
                return row
        known = max(self._run.fit_check.known, default=size)
        return Row(size, min(size, self._micro.get(size, known)))

    def clear(self) -> None:
        """The pass is over: what was fetched and not trained on is let go."""
        self._queue.clear()
        self._batch_source.stop()
        self._is_first = True

    def _fill(self, steps: int, wanted: int) -> None:
        queue = self._queue
        size = sum(tensor.nbytes for tensor in aten.tensors(_plain(queue[0].data)))
        steps = min(steps, int(self._most_bytes / size)) if size else steps
        while len(queue) < steps:
            found, waited_s = self._take()
            self._run.times.fetching_s += waited_s
            if found is None:
                return
            queue.append(found)
            if found.batch_size != wanted:
                return

    def _take(self) -> tuple[Fetched | None, float]:
        device = self._run.device
        begun_s = device.now_s()
        found = self._batch_source.fetch()
        return found, device.now_s() - begun_s


def _plain(data: Any) -> Any:
    return dict(data) if hasattr(data, "items") else data
