"""Batches for the next steps: one at a time in training, a burst of them before a probe, so that it never waits."""

from __future__ import annotations

from collections import deque
from typing import Any

from wattune.algorithms.counting import aten
from wattune.online.batch_source import BatchSource, Fetched
from wattune.online.loop_run import LoopRun, NextStep
from wattune.point import BatchShape

BURST_BYTES = 256 * 2**20
"""Largest size of a burst in memory."""

BURST_SHARE = 0.05
"""Largest share of the device's memory that a burst may take."""


class Prefetcher:
    """Takes batches from the batch source, in its order, at the size that the session wants next.

    Batches that the loader's workers fetched ahead at another size are trained on at that size.
    """

    def __init__(self, batch_source: BatchSource, run: LoopRun):
        self._batch_source = batch_source
        self._run = run
        self._queue: deque[Fetched] = deque()
        self._micro: dict[int, int] = {}  # batch size -> micro-batch size of its last row
        self._is_first = True
        self.step: NextStep
        """The step that the last fetched batch was wanted for."""
        memory = run.device.memory_bytes
        self._most_bytes = BURST_BYTES if memory is None else min(BURST_BYTES, BURST_SHARE * memory)

    def fetch(self) -> Fetched | None:
        """The next batch; None at the end of the pass."""
        step = self.step = self._run.next_step()
        wanted = self._batch_source.size = step.wanted.batch
        self._micro.setdefault(wanted, step.wanted.micro)  # workers fetch it now, and it may come after another row
        queue, times = self._queue, self._run.times
        if not queue:
            fetched, waited_s = self._take()
            if fetched is None:
                return None
            queue.append(fetched)
            if step.probing:
                times.fetching_s += waited_s
            elif self._is_first:
                times.starting_s += waited_s
            else:
                times.waiting_s += waited_s
            self._is_first = False
            if step.probing and fetched.batch_size == wanted:
                self._fill(step.steps, wanted)
        return queue.popleft()

    def row(self, fetched: Fetched) -> BatchShape:
        """The row to train a batch with: the wanted one if it has its size, else the last one of its size."""
        size = fetched.batch_size
        for row in (self.step.wanted, self.step.current):
            if row.batch == size:
                self._micro[size] = row.micro
                return row
        largest = max(self._run.fit_check.known, default=size)
        return BatchShape(size, min(size, self._micro.get(size, largest)))

    def clear(self) -> None:
        """End the pass, and drop the batches that were not trained on."""
        self._queue.clear()
        self._batch_source.stop()
        self._is_first = True

    def _fill(self, steps: int, wanted: int) -> None:
        queue = self._queue
        size = sum(tensor.nbytes for tensor in aten.tensors(_as_dict(queue[0].data)))
        steps = min(steps, int(self._most_bytes / size)) if size else steps
        while len(queue) < steps:
            fetched, waited_s = self._take()
            self._run.times.fetching_s += waited_s
            if fetched is None:
                return
            queue.append(fetched)
            if fetched.batch_size != wanted:
                return

    def _take(self) -> tuple[Fetched | None, float]:
        device = self._run.device
        begun_s = device.now_s()
        fetched = self._batch_source.fetch()
        return fetched, device.now_s() - begun_s


def _as_dict(data: Any) -> Any:
    return dict(data) if hasattr(data, "items") else data
