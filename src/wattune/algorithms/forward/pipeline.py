"""A pipeline of modules in threads, through which batches advance, tick by tick.

In tick t module k (of K, counted from 0) works on batch t-k: each batch advances by one module per tick. The last
module gets the loss of batch t-K+1 and its derivative along the batch's direction, by which every module then updates
its present parameters. So module k works on batch b with the parameters after ``max(0, b - (K-1-k))`` updates.

Source: Zhao, Zhang, Huo, Gu, AsyncFGD, NeurIPS 2023; Huo et al., Decoupled Parallel Backprop, ICML 2018 (delays).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from wattune.algorithms.base import Batch, Trainable, evaluated_loss
from wattune.algorithms.forward.masks import RandomKey
from wattune.algorithms.forward.perturbed import DualValue, Stage


@dataclass
class BatchInFlight:
    """A batch that has passed some modules: what the next one gets, and at the end the loss and its derivative.

    ``buffers``: of each module that it has passed, copies from before.
    """

    batch: Batch
    key: RandomKey
    value: DualValue
    buffers: list[list[Tensor]] = field(default_factory=list)


@contextmanager
def threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads for ``count`` modules, each with its share of the threads that one operation may use."""
    before = torch.get_num_threads()

    def begin() -> None:
        torch.set_num_threads(max(1, before // count))
        torch.set_grad_enabled(False)  # per thread: the caller's does not apply there

    try:
        with ThreadPoolExecutor(count, thread_name_prefix="module ", initializer=begin) as pool:
            yield pool
    finally:
        torch.set_num_threads(before)  # a thread that sets its number also sets the number of future threads


class Pipeline:
    """The modules of a model, each with one batch at a time, in threads.

    PyTorch's operations release Python's global lock, and engines that wait for a device do, so modules overlap to the
    extent that their time is in either.
    """

    def __init__(self, stages: Sequence[Stage], trainable: Trainable, pool: ThreadPoolExecutor):
        self._stages, self._trainable, self._pool = stages, trainable, pool
        for stage in stages:
            stage.lag = 0  # batches in flight are the delay: no old parameters are needed
        self.in_flight: deque[BatchInFlight] = deque()
        self.again: deque[Batch] = deque()

    def advance(self, batch: Batch | None, key: RandomKey) -> BatchInFlight | None:
        """Run one module of each batch, beginning with this one; return the one that has passed all modules.

        The gradients of all modules then have its share.
        """
        if batch is not None:
            self.in_flight.append(BatchInFlight(batch, key, (batch[0], None)))
        self._each(self._pass_module, self.in_flight)
        if len(self.in_flight[0].buffers) < len(self._stages):
            return None
        ended = self.in_flight.popleft()
        if bool(torch.isfinite(ended.value[1])):
            self._each(partial(self._add_gradient, ended), self._stages)
        return ended

    def restart(self) -> None:
        """Undo what the batches in flight have done to the buffers; they come ``again``."""
        if self.in_flight:
            for stage, values in zip(self._stages, self.in_flight[0].buffers, strict=False):  # the oldest's come first
                for buffer, value in zip(stage.module.buffers(), values, strict=True):
                    buffer.copy_(value)
        self.again.extendleft(one.batch for one in reversed(self.in_flight))
        self.in_flight.clear()

    def _each(self, call: Callable[[Any], None], items: Iterable[Any]) -> None:
        turns = [self._pool.submit(call, item) for item in items]
        wait(turns)  # all of them: an error of one must not leave others running
        for turn in turns:
            turn.result()

    def _pass_module(self, one: BatchInFlight) -> None:
        stage = self._stages[len(one.buffers)]
        key = one.key._replace(module=stage.index)
        one.buffers.append([buffer.clone() for buffer in stage.module.buffers()])
        if stage is self._stages[-1]:
            one.value = stage.loss_along(*one.value, partial(evaluated_loss, self._trainable, target=one.batch[1]), key)
        else:
            one.value = stage.dual(*one.value, key)

    @staticmethod
    def _add_gradient(ended: BatchInFlight, stage: Stage) -> None:
        stage.add_gradient(None, ended.value[1], ended.key._replace(module=stage.index))
