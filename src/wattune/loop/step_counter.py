"""The work of the user's own steps on a device that does not execute them, counted while they run here."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from wattune.algorithms.counting.counter import Counter
from wattune.records import StepWork


class StepWorkCounter:
    """The work of every kind of step so far; the first step of each kind is counted.

    ``counts`` is False on a device that executes the steps itself, where they are only timed.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | None, *, counts: bool):
        self.counts = counts
        self._model = model
        self._optimizer = optimizer
        self._works: dict[Hashable, StepWork] = {}
        self._placeholders: dict[tuple[int, int], StepWork] = {}
        self._counter: Counter | None = None
        self._key: Hashable = None
        self._hooks: list[Any] = []

    def open(self) -> None:
        """Observe the optimizer, until ``close``."""
        if self.counts and self._optimizer is not None:
            self._hooks = [
                self._optimizer.register_step_pre_hook(lambda *_: self.optimizing(True)),
                self._optimizer.register_step_post_hook(lambda *_: self.optimizing(False)),
            ]

    def placeholder(self, samples: int, micro_batch_size: int) -> StepWork:
        """StepWork without figures, for a step that the device executes itself; the same object each time."""
        key = samples, micro_batch_size
        if key not in self._placeholders:
            self._placeholders[key] = StepWork(
                samples=samples, micro_batch_size=micro_batch_size, data_type="fp32", phases=(), peak_memory_bytes=0
            )
        return self._placeholders[key]

    def begin(self, key: Hashable, data: Any = None) -> None:
        """Begin a step of this kind with these inputs, and count it if it is the first one."""
        if not self.counts:
            return
        state = self._optimizer.state if self._optimizer is not None else {}
        self._key = key, bool(state), self._model.training
        if self._key in self._works:
            return
        counter = Counter()
        counter.hold(list(self._model.parameters()))
        counter.hold([p.grad for p in self._model.parameters() if p.grad is not None])
        counter.hold([list(values.values()) for values in state.values() if isinstance(values, dict)])
        counter.hold(data)
        counter.__enter__()  # type: ignore[no-untyped-call]
        self._counter = counter

    def end(self, samples: int, micro_batch_size: int, *, keep: bool = True) -> StepWork:
        """End the step. Returns: its work, which is stored for its kind unless ``keep`` is False."""
        counter = self.drop()
        if counter is None:
            return self._works[self._key]
        work = counter.work(samples, micro_batch_size)
        if keep:
            self._works[self._key] = work
        return work

    def drop(self) -> Counter | None:
        """Stop counting. Returns: the counter, if there was one."""
        counter, self._counter = self._counter, None
        if counter is not None:
            counter.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return counter

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Context whose operations are not part of the user's step."""
        if self._counter is not None:
            self._counter.paused = True
        counter = self._counter
        try:
            yield
        finally:
            if counter is not None:
                counter.paused = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Context for work of its own kind in the middle of a step, which is continued afterwards."""
        with self.uncounted():
            step, self._counter = (self._key, self._counter), None
            try:
                yield
            finally:
                self.drop()
                self._key, self._counter = step

    def close(self) -> None:
        """Restore the optimizer."""
        self.drop()
        for hook in self._hooks:
            hook.remove()

    def optimizing(self, value: bool) -> None:
        """Set whether operations from now on are the optimizer's, or those of forward and backward passes."""
        if self._counter is not None:
            self._counter.in_optimizer = value
