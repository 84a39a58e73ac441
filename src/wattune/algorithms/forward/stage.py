"""One module of a pipeline: its inbox, inputs stored until a derivative arrives, its past parameters and updates."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wattune.algorithms.forward.alpha import Alpha
from wattune.algorithms.forward.blocks import ExactEnd, PerturbedBlocks
from wattune.algorithms.forward.masks import RandomKey
from wattune.algorithms.forward.perturbed import Perturbed

DualValue = tuple[Any, Tensor | None]
"""The value passed from module to module: activations (a batch's inputs before the first), and their tangent if any.
Perturbed activities have a tangent for each direction, along a new first dimension."""

PerturbedModule = Perturbed | PerturbedBlocks | ExactEnd
"""A module of a pipeline: with perturbed weights, or with perturbed activities and an exact end."""


class Stage:
    """Module ``index`` of a pipeline, whose derivative for a batch arrives ``lag`` ticks after its forward pass.

    Batches are numbered from 0 since the start of the run. Once a derivative arrives, perturbed weights need only the
    batch's key. Perturbed activities need a second forward pass with the input and parameters of the first: both are
    stored for each batch in flight, ``lag`` copies of the parameters in all.

    The module's buffers change before the Step of their batch is yielded. Between two Steps they have their values
    after the batch of the last Step (``show``); ``proceed`` restores those that the next batch needs.
    """

    def __init__(self, index: int, perturbed: PerturbedModule, lag: int, *, device: torch.device):
        self.index, self.perturbed, self.lag, self.device = index, perturbed, lag, device
        self.next_batch = 0
        self.inbox: dict[int, DualValue] = {}
        self._trainable = [p for p in perturbed.module.parameters() if p.requires_grad]
        self._keeps = perturbed.keeps_input
        self._snapshots: dict[int, tuple[Any, list[Tensor] | None]] = {}
        self._missed_updates: dict[int, list[Tensor]] = {}
        self._changing = list(perturbed.module.buffers()) if lag else []
        self._after: dict[int, list[Tensor]] = {}
        self._ahead: list[Tensor] | None = None

    @property
    def module(self) -> nn.Module:
        """The layers."""
        return self.perturbed.module

    def receive(self, batch: int, dual_input: DualValue) -> None:
        """Put the activations of a batch into the inbox, on this module's device."""
        self.inbox[batch] = self.here(dual_input)

    def here(self, dual_input: DualValue) -> DualValue:
        """Move activations and tangent to this module's device."""
        x, tangent = dual_input
        return self._moved(x), None if tangent is None else self._moved(tangent)

    def forward(self, key: RandomKey) -> DualValue:
        """Run the forward pass of batch ``key.step`` along ``key``'s direction, inside ``forward_ad.level``."""
        x, tangent = self.inbox.pop(key.step)
        self.next_batch = key.step + 1
        if self._keeps:
            self._snapshots[key.step] = x, self._parameters() if self.lag else None
        return self.perturbed.dual(x, tangent, key)

    def loss_along(self, key: RandomKey, loss_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Run the last module on batch ``key.step`` with its exact gradient: the loss, and the derivatives."""
        assert isinstance(self.perturbed, ExactEnd)
        x, tangents = self.inbox.pop(key.step)
        self.next_batch = key.step + 1
        return self.perturbed.loss_along(x, tangents, loss_of, key)

    def forward_late(self, key: RandomKey) -> DualValue:
        """Run the forward pass of a batch that was missing at its turn, with the parameters of that time."""
        missed = self._missed_updates.pop(key.step)
        with _in_place(self._trainable, missed):
            x, tangent = self.inbox.pop(key.step)
            self.next_batch = key.step + 1
            if self._keeps:
                self._snapshots[key.step] = x, missed
            return self.perturbed.dual(x, tangent, key)

    def learn(self, derivative: Tensor, key: RandomKey) -> None:
        """Add the estimated gradient for batch ``key.step``."""
        derivative = derivative.to(self.device)
        if not self._keeps:
            self.perturbed.add_gradient(derivative, derivative, key)  # only the device of the input matters
            return
        x, parameters = self._snapshots.pop(key.step)
        if parameters is None:
            self.perturbed.add_gradient(x, derivative, key)
            return
        with _in_place(self._trainable, parameters):
            self.perturbed.add_gradient(x, derivative, key)

    def forget(self, batch: int) -> None:
        """Drop a batch that nothing is learnt from."""
        self._snapshots.pop(batch, None)

    def miss(self, batch: int) -> None:
        """Store the present parameters for a batch missing at its turn, so that a stopped run resumes exactly."""
        self._missed_updates[batch] = self._parameters()

    def keep(self, batch: int) -> None:
        """Store the tensors that this batch changed, to be shown once its Step is yielded."""
        if self._changing:
            self._after[batch] = [t.detach().clone() for t in self._changing]

    def show(self, batch: int) -> None:
        """Set the changing tensors to their values after this batch."""
        if self._changing:
            self._ahead = [t.data for t in self._changing]
            _point(self._changing, self._after.pop(batch))

    def proceed(self) -> None:
        """Set the changing tensors to their values after the last batch that passed."""
        if self._ahead is not None:
            _point(self._changing, self._ahead)
            self._ahead = None

    def state_dict(self) -> dict[str, Any]:
        """State of the batches in flight, without the module; the tensors are the stage's own."""
        return {
            "next_batch": self.next_batch,
            "inbox": {batch: list(dual_input) for batch, dual_input in self.inbox.items()},
            "kept": {batch: list(tensors) for batch, tensors in self._snapshots.items()},
            "missed": dict(self._missed_updates),
            "after": dict(self._after),
            "ahead": self._ahead,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from copies of a state. Raises: KeyError, ValueError, RuntimeError if it belongs to another stage."""

        def own(values: Any, like: Sequence[Tensor]) -> list[Tensor]:
            return [v.detach().to(t.device, copy=True).view(t.shape) for v, t in zip(values, like, strict=True)]

        def passed(x: Any, tangent: Tensor | None) -> DualValue:
            return self._moved(x, copy=True), None if tangent is None else self._moved(tangent, copy=True)

        self.next_batch = int(state["next_batch"])
        self.inbox = {batch: passed(*values) for batch, values in state["inbox"].items()}
        self._snapshots = {
            batch: (self._moved(x, copy=True), None if values is None else own(values, self._trainable))
            for batch, (x, values) in state["kept"].items()
        }
        self._missed_updates = {batch: own(values, self._trainable) for batch, values in state["missed"].items()}
        self._after = {batch: own(values, self._changing) for batch, values in state["after"].items()}
        self._ahead = None if state["ahead"] is None else own(state["ahead"], self._changing)

    def _moved(self, values: Any, *, copy: bool = False) -> Any:
        return tree_map(lambda v: v.to(self.device, copy=copy) if isinstance(v, Tensor) else v, values)

    def _parameters(self) -> list[Tensor]:
        return [p.detach().clone() for p in self._trainable]


@contextmanager
def _in_place(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """Give the parameters other values for the duration of the context, by reference."""
    present = [p.data for p in parameters]
    _point(parameters, values)
    try:
        yield
    finally:
        _point(parameters, present)


def _point(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.data = value


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
    """The step of ``optimizer`` with the rates of ``alpha``, divided into one part for each list of parameters.

    The optimizer keeps the state and the settings of all; states loaded into it and changes of its groups apply from
    the next step on. An optimizer that is not ``SEPARABLE``, or whose step is observed (by hooks or a learning rate
    scheduler), takes its step as a whole, in ``finish``.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, parameters: Sequence[Iterable[nn.Parameter]], alpha: Alpha):
        alpha.check(optimizer)
        self._optimizer, self._alpha = optimizer, alpha
        self._parameters = [{id(p): p for p in own} for own in parameters]
        self._parts = [copy.copy(optimizer) for _ in parameters] if type(optimizer) in SEPARABLE else []

    @property
    def separate(self) -> bool:
        """True if each module takes its part of the step."""
        whole = self._optimizer
        has_hooks = whole._optimizer_step_pre_hooks or whole._optimizer_step_post_hooks or "step" in vars(whole)
        return bool(self._parts) and not has_hooks

    def part(self, index: int, step: int) -> None:
        """Update the parameters of a module by their gradients, and drop the gradients, if the step is separate."""
        if not self.separate:
            return
        part, own = self._parts[index], self._parameters[index]
        part.state = self._optimizer.state
        part.param_groups = [
            {**group, "params": [p for p in group["params"] if id(p) in own]} for group in self._optimizer.param_groups
        ]
        with self._alpha.applied(part, step):
            part.step()
        for parameter in own.values():
            parameter.grad = None

    def finish(self, step: int) -> None:
        """Take the step of an optimizer that is not divided; call it once every module has called ``part``."""
        if not self.separate:
            with self._alpha.applied(self._optimizer, step):
                self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
