"""What the user's own step asks of a device that does not run it, counted while it runs here."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from wattune.algorithms.counting import aten
from wattune.algorithms.counting.counter import Counter, phases
from wattune.records import StepWork

DATA_TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


class StepCounter(Counter):  # type: ignore[no-untyped-call]
    """Sees by itself what is forward, backward and optimizer; and which data type the products are computed in."""

    def __init__(self) -> None:
        super().__init__("forward")
        self.in_optimizer = False
        self.paused = False
        self._flops: dict[str, float] = {}

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), options: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and count it."""
        if self.paused:
            return operation(*arguments, **(options or {}))
        in_backward = torch._C._current_graph_task_id() != -1
        self.phase = "optimizer" if self.in_optimizer else "backward" if in_backward else "forward"
        outputs = super().__torch_dispatch__(operation, types, arguments, options)
        if aten.launches(operation) and aten.kind(operation, arguments) in ("matmul", "convolution"):
            name = DATA_TYPES.get(next(aten.tensors(outputs)).dtype, "fp32")
            self._flops[name] = self._flops.get(name, 0.0) + aten.flops(operation, arguments, outputs)
        return outputs

    @property
    def data_type(self) -> str:
        """The data type that most of the arithmetic ran in."""
        return max(self._flops, key=lambda name: self._flops[name], default="fp32")


class StepWorkCounter:
    """The work of every kind of step that ran so far; a step of a kind that did not is counted.

    ``counts``: whether there is anything to count, since a device that runs the steps itself only times them.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer | None, *, counts: bool):
        self.counts = counts
        self._model = model
        self._optimizer = optimizer
        self._works: dict[Hashable, StepWork] = {}
        self._placeholders: dict[tuple[int, int], StepWork] = {}
        self._counter: StepCounter | None = None
        self._key: Hashable = None
        self._hooks: list[Any] = []

    def open(self) -> None:
        """Begin to see what the optimizer does, until ``close``."""
        if self.counts and self._optimizer is not None:
            self._hooks = [
                self._optimizer.register_step_pre_hook(lambda *_: self.optimizing(True)),
                self._optimizer.register_step_post_hook(lambda *_: self.optimizing(False)),
            ]

    def placeholder(self, samples: int, micro_batch_size: int) -> StepWork:
        """The name of a step that a device runs itself; the same one each time."""
        key = samples, micro_batch_size
        if key not in self._placeholders:
            self._placeholders[key] = StepWork(
                samples=samples, micro_batch_size=micro_batch_size, data_type="fp32", phases=(), peak_memory_bytes=0
            )
        return self._placeholders[key]

    def begin(self, key: Hashable, data: Any = None) -> None:
        """A step of this kind begins, with these inputs: count it where no such step was counted yet."""
        if not self.counts:
            return
        state = self._optimizer.state if self._optimizer is not None else {}
        self._key = key, bool(state), self._model.training
        if self._key in self._works:
            return
        counter = StepCounter()
        counter.hold(list(self._model.parameters()))
        counter.hold([p.grad for p in self._model.parameters() if p.grad is not None])
        counter.hold([list(values.values()) for values in state.values() if isinstance(values, dict)])
        counter.hold(data)
        counter.__enter__()  # type: ignore[no-untyped-call]
        self._counter = counter

    def end(self, samples: int, micro_batch_size: int, *, keep: bool = True) -> StepWork:
        """The work of the step that ends. ``keep`` False: it was not like others of its kind."""
        counter = self.drop()
        if counter is None:
            return self._works[self._key]
        work = StepWork(
            samples=samples,
            micro_batch_size=micro_batch_size,
            data_type=counter.data_type,
            phases=phases(counter.tally),
            peak_memory_bytes=max(counter.memory_bytes, default=0),
        )
        if keep:
            self._works[self._key] = work
        return work

    def drop(self) -> StepCounter | None:
        """Stop counting; what was counted, if anything was."""
        counter, self._counter = self._counter, None
        if counter is not None:
            counter.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return counter

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """What runs in here is no part of the user's step."""
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
        """What is begun and ended in here stands apart from the step under way."""
        with self.uncounted():
            step, self._counter = (self._key, self._counter), None
            try:
                yield
            finally:
                self.drop()
                self._key, self._counter = step

    def close(self) -> None:
        """Leave the optimizer as it was found."""
        self.drop()
        for hook in self._hooks:
            hook.remove()

    def optimizing(self, value: bool) -> None:
        """What runs from now on is the optimizer's work, or is that of forward and backward passes again."""
        if self._counter is not None:
            self._counter.in_optimizer = value
