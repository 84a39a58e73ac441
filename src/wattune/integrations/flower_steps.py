"""The optimizer steps of a train function, observed from outside: counted, and timed by the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from typing_extensions import Self

from wattune.devices import Device
from wattune.online.step_counter import StepWorkCounter
from wattune.records import StepWork

COUNTED = 2
"""Steps whose work is counted: the first one makes the optimizer's state, the second stands for all that follow."""


class ObservedSteps:
    """A context in which every step of a torch optimizer is counted in ``steps``.

    On a device that does not execute the steps itself, each one passes its time there, from the first forward pass
    after the step before to its own end: what loads the data is not work of the device. ``after_step`` is called after
    each step. ``batch_size`` is that of the train function.
    """

    def __init__(self, device: Device, batch_size: int, after_step: Callable[[], None]):
        self.steps = 0
        self._device, self._batch_size, self._after_step = device, batch_size, after_step
        self._counts = not device.executes_steps
        self._work: StepWork | None = None
        self._counter: StepWorkCounter | None = None
        self._hooks: list[Any] = []

    def __enter__(self) -> Self:
        self._hooks = [register_optimizer_step_post_hook(lambda *_: self._end())]
        if self._counts:
            self._hooks += [
                register_module_forward_pre_hook(lambda module, _: self._begin(module)),
                register_optimizer_step_pre_hook(lambda *_: self._optimize()),
            ]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()
        if self._counter is not None:  # a forward pass without a step
            self._counter.close()
            self._counter = None

    def _begin(self, module: torch.nn.Module) -> None:
        if self._counter is not None or self.steps >= COUNTED or not torch.is_grad_enabled():
            return
        self._counter = StepWorkCounter(module, None, counts=True)
        self._counter.begin("step")

    def _optimize(self) -> None:
        if self._counter is not None:
            self._counter.optimizing(True)

    def _end(self) -> None:
        self.steps += 1
        counter, self._counter = self._counter, None
        if counter is not None:
            self._work = counter.end(self._batch_size, self._batch_size)
        if self._work is not None:
            with self._device.step(self._work):
                pass
        self._after_step()
