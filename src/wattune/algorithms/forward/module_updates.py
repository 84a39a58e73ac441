"""An optimizer's step, taken by each module of a pipeline separately so that modules in threads update in parallel."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import nn

SEPARABLE = (
    torch.optim.ASGD,
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.SGD,
)
"""Optimizers that update each parameter by its own gradient and state alone, so that their step can be divided.

Source: the parameter loops of pytorch torch/optim/*.py.
"""


class ModuleUpdates:
    """The step of ``optimizer``, divided into one part for each of these lists of parameters.

    The optimizer keeps the state and the settings of all; states loaded into it and changes of its groups apply from
    the next step on. An optimizer that is not ``SEPARABLE``, or whose step is observed (by hooks or a learning rate
    scheduler), takes its step as a whole, in ``finish``.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Iterable[nn.Parameter]]):
        self._optimizer = optimizer
        self._parameters = [{id(p): p for p in own} for own in parameters]
        self._parts = [copy.copy(optimizer) for _ in parameters] if type(optimizer) in SEPARABLE else []

    @property
    def separate(self) -> bool:
        """True if each module takes its part of the step."""
        whole = self._optimizer
        has_hooks = whole._optimizer_step_pre_hooks or whole._optimizer_step_post_hooks or "step" in vars(whole)
        return bool(self._parts) and not has_hooks

    def part(self, index: int) -> None:
        """Update the parameters of a module by their gradients, and drop the gradients, if the step is separate."""
        if not self.separate:
            return
        part, own = self._parts[index], self._parameters[index]
        part.state = self._optimizer.state
        part.param_groups = [
            {**group, "params": [p for p in group["params"] if id(p) in own]} for group in self._optimizer.param_groups
        ]
        part.step()
        for parameter in own.values():
            parameter.grad = None

    def finish(self) -> None:
        """Take the step of an optimizer that is not divided; call it once every module has called ``part``."""
        if not self.separate:
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
