"""An optimizer's step taken by each module of a pipeline for itself, so that modules that run side by side do it so."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import nn

ALONE = (
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
"""Optimizers that update each parameter by its own gradient and state alone: in parts they do what they do in one step.

Source: the parameter loops of pytorch torch/optim/*.py.
"""


class Updates:
    """The step of ``optimizer``, in a part for each of these lists of parameters.

    The optimizer keeps the state and the settings of all; whatever is loaded into it or changed in its groups counts
    from the next step on. One of a kind not in ``ALONE``, and one whose step somebody watches (hooks, a learning rate
    scheduler), takes its step as a whole, in ``rest``.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Iterable[nn.Parameter]]):
        self._optimizer = optimizer
        self._parameters = [{id(p): p for p in own} for own in parameters]
        self._parts = [copy.copy(optimizer) for _ in parameters] if type(optimizer) in ALONE else []

    @property
    def separate(self) -> bool:
        """Whether each module takes its part of the step."""
        whole = self._optimizer
        watched = whole._optimizer_step_pre_hooks or whole._optimizer_step_post_hooks or "step" in vars(whole)
        return bool(self._parts) and not watched

    def part(self, index: int) -> None:
        """Update the parameters of a module by their gradients, and drop these, where it can be done for it alone."""
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

    def rest(self) -> None:
        """Once every module has taken its part: the step of an optimizer that is not taken apart."""
        if not self.separate:
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
