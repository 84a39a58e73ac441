"""One module of a pipeline: what waits for it, what it keeps until a derivative comes back, and its past parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from wattune.algorithms.perturbed import Perturbed
from wattune.algorithms.tangents import Key

Passed = tuple[Any, Tensor | None]
"""What goes from module to module: activations (a batch's inputs before the first), and their tangent if any."""


class Stage:
    """Module ``index`` of a pipeline, whose derivative for a batch comes ``lag`` ticks after its forward pass.

    Batches are numbers, counted from 0 since the training began. Perturbed weights need nothing but the key of a batch
    once its derivative is there. Perturbed activities need the second forward pass to be at the input and parameters
    of the first: both are kept for each batch under way, ``lag`` copies of the parameters in all.

    ``changing`` are the tensors that a batch changes when it passes, before its Step comes out: buffers, and where a
    module learns from a loss of its own its parameters. Between two Steps they show what they were after the batch of
    the last Step (``show``); ``proceed`` brings back those that the next batch needs.
    """

    def __init__(
        self, index: int, perturbed: Perturbed, lag: int, *, changing: Sequence[Tensor] = (), device: torch.device
    ):
        self.index, self.perturbed, self.lag, self.device = index, perturbed, lag, device
        self.next_batch = 0
        self.inbox: dict[int, Passed] = {}
        self._trained = [p for p in perturbed.module.parameters() if p.requires_grad]
        self._keeps = perturbed.perturb == "activities"
        self._kept: dict[int, tuple[Any, list[Tensor] | None]] = {}
        self._missed: dict[int, list[Tensor]] = {}
        self._changing = list(changing) if lag else []
        self._after: dict[int, list[Tensor]] = {}
        self._ahead: list[Tensor] | None = None

    @property
    def module(self) -> nn.Module:
        """The layers."""
        return self.perturbed.module

    def receive(self, batch: int, passed: Passed) -> None:
        """Activations of a batch, moved to where this module is."""
        self.inbox[batch] = self.here(passed)

    def here(self, passed: Passed) -> Passed:
        """Activations and tangent where this module is."""
        x, tangent = passed
        return self._moved(x), None if tangent is None else self._moved(tangent)

    def forward(self, key: Key) -> Passed:
        """The forward pass of batch ``key.step`` along ``key``'s direction, inside ``forward_ad.level``."""
        x, tangent = self.inbox.pop(key.step)
        self.next_batch = key.step + 1
        if self._keeps:
            self._kept[key.step] = x, self._parameters() if self.lag else None
        return self.perturbed.dual(x, tangent, key)

    def forward_late(self, key: Key) -> Passed:
        """The forward pass of a batch that had not come when it was its turn, at the parameters of that time."""
        missed = self._missed.pop(key.step)
        with _in_place(self._trained, missed):
            x, tangent = self.inbox.pop(key.step)
            self.next_batch = key.step + 1
            if self._keeps:
                self._kept[key.step] = x, missed
            return self.perturbed.dual(x, tangent, key)

    def learn(self, derivative: Tensor, key: Key) -> None:
        """Add the estimated gradient for batch ``key.step``."""
        derivative = derivative.to(self.device)
        if not self._keeps:
            self.perturbed.add_gradient(derivative, derivative, key)  # of the input only the device is needed
            return
        x, parameters = self._kept.pop(key.step)
        if parameters is None:
            self.perturbed.add_gradient(x, derivative, key)
            return
        with _in_place(self._trained, parameters):
            self.perturbed.add_gradient(x, derivative, key)

    def forget(self, batch: int) -> None:
        """Nothing is learnt from this batch."""
        self._kept.pop(batch, None)

    def miss(self, batch: int) -> None:
        """It is this batch's turn and it is not there: its forward pass will be at the present parameters all the
        same, so that a training that was stopped goes on exactly."""
        self._missed[batch] = self._parameters()

    def keep(self, batch: int) -> None:
        """This batch has passed: what it changed is to be shown when its Step is out."""
        if self._changing:
            self._after[batch] = [t.detach().clone() for t in self._changing]

    def show(self, batch: int) -> None:
        """The changing tensors as they were after this batch."""
        if self._changing:
            self._ahead = [t.data for t in self._changing]
            _point(self._changing, self._after.pop(batch))

    def proceed(self) -> None:
        """The changing tensors as they are after the last batch that passed."""
        if self._ahead is not None:
            _point(self._changing, self._ahead)
            self._ahead = None

    def state_dict(self) -> dict[str, Any]:
        """What is under way, not the module itself; the tensors are the stage's own."""
        return {
            "next_batch": self.next_batch,
            "inbox": {batch: list(passed) for batch, passed in self.inbox.items()},
            "kept": {batch: list(kept) for batch, kept in self._kept.items()},
            "missed": dict(self._missed),
            "after": dict(self._after),
            "ahead": self._ahead,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over copies of what was under way. Raises: KeyError, ValueError, RuntimeError where it is of another."""

        def own(values: Any, like: Sequence[Tensor]) -> list[Tensor]:
            return [v.detach().to(t.device, copy=True).view(t.shape) for v, t in zip(values, like, strict=True)]

        def passed(x: Any, tangent: Tensor | None) -> Passed:
            return self._moved(x, copy=True), None if tangent is None else self._moved(tangent, copy=True)

        self.next_batch = int(state["next_batch"])
        self.inbox = {batch: passed(*values) for batch, values in state["inbox"].items()}
        self._kept = {
            batch: (self._moved(x, copy=True), None if values is None else own(values, self._trained))
            for batch, (x, values) in state["kept"].items()
        }
        self._missed = {batch: own(values, self._trained) for batch, values in state["missed"].items()}
        self._after = {batch: own(values, self._changing) for batch, values in state["after"].items()}
        self._ahead = None if state["ahead"] is None else own(state["ahead"], self._changing)

    def _moved(self, values: Any, *, copy: bool = False) -> Any:
        return tree_map(lambda v: v.to(self.device, copy=copy) if isinstance(v, Tensor) else v, values)

    def _parameters(self) -> list[Tensor]:
        return [p.detach().clone() for p in self._trained]


@contextmanager
def _in_place(parameters: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """In here the parameters have other values: they point to them, nothing is copied."""
    present = [p.data for p in parameters]
    _point(parameters, values)
    try:
        yield
    finally:
        _point(parameters, present)


def _point(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.data = value
