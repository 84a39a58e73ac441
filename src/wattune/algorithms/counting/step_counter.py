"""The operations of a step that code of a user makes, counted by their phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from wattune.algorithms.counting import aten
from wattune.algorithms.counting.counter import Counter, phases
from wattune.records import StepWork

DATA_TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}


class StepCounter(Counter):  # type: ignore[no-untyped-call]
    """Counts forward, backward and optimizer separately, and detects the data type of the matrix products."""

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

    def work(self, samples: int, micro_batch_size: int) -> StepWork:
        """The work so far, as that of a step."""
        return StepWork(
            samples=samples,
            micro_batch_size=micro_batch_size,
            data_type=self.data_type,
            phases=phases(self.tally),
            peak_memory_bytes=max(self.memory_bytes, default=0),
        )


@contextmanager
def counted_steps(counter: StepCounter, on_step: Callable[[int], None]) -> Iterator[None]:
    """Count all that runs inside; ``on_step`` gets each optimizer that has stepped, by its identity."""

    def stepped(optimizer: object, *_: object) -> None:
        counter.in_optimizer = False
        on_step(id(optimizer))

    # The last post-hook: what the program registers itself has run before.
    hooks = (
        register_optimizer_step_pre_hook(lambda *_: setattr(counter, "in_optimizer", True)),
        register_optimizer_step_post_hook(stepped),
    )
    try:
        with counter:
            yield
    finally:
        for hook in hooks:
            hook.remove()
