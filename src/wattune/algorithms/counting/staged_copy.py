"""Copies of a model and its optimizer, without values if possible, on which a step can run to be counted."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from wattune.algorithms.base import Batch, Trainable
from wattune.errors import WorkloadError

Place = Literal["meta", "fake", "cpu"]
"""Place of the copies: the meta device, fake CPU tensors, or the CPU with their values."""


class StagedCopy:
    """Copies of ``module`` and ``optimizer``, with the state that the optimizer has after its first step.

    The copy of the optimizer goes from one weight tensor to the next (``foreach`` and ``fused`` off).
    """

    def __init__(self, place: Place, trainable: Trainable, module: nn.Module, optimizer: torch.optim.Optimizer):
        self.place = place
        self._fake = FakeTensorMode(allow_non_fake_inputs=True) if place == "fake" else None
        self._sample = None if place == "cpu" else trainable.example(1)
        with self.running():
            copies: dict[int, Any] = {}
            for tensor in (*module.parameters(), *module.buffers()):
                values = tensor.detach().cpu().clone() if place == "cpu" else self._empty(tensor, *tensor.shape)
                trains = isinstance(tensor, nn.Parameter)
                copies[id(tensor)] = nn.Parameter(values, tensor.requires_grad) if trains else values
            # The copies go to deepcopy as if it had made them: no value is copied twice, and tied weights stay tied.
            self.module = copy.deepcopy(module, dict(copies))
            self.optimizer = _optimizer_of(optimizer, copies)
            self.set_gradients(True)
            self.optimizer.step()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Context for everything that touches the copies; it leaves the global random state unchanged."""
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            if self._fake is not None:
                stack.enter_context(self._fake)
            yield

    @contextmanager
    def forward(self, *, train: bool) -> Iterator[None]:
        """Context of a forward pass: tensors that the model creates are created in the same place."""
        self.module.train(train)
        with ExitStack() as stack:
            if self.place == "meta":
                stack.enter_context(torch.device("meta"))
            stack.enter_context(torch.set_grad_enabled(train))
            yield

    def batch(self, trainable: Trainable, samples: int) -> Batch:
        """A batch of ``samples`` samples."""
        if self._sample is None:
            return trainable.example(samples)
        x, y = tree_map(lambda v: self._empty(v, samples, *v.shape[1:]) if isinstance(v, Tensor) else v, self._sample)
        return x, y

    def set_gradients(self, present: bool) -> None:
        """Give every trainable parameter a gradient, or remove it."""
        for parameter in self.module.parameters():
            parameter.grad = torch.zeros_like(parameter) if present and parameter.requires_grad else None

    def state(self) -> list[Any]:
        """Tensors that are always in memory: parameters, gradients, buffers, the optimizer's state."""
        parameters = list(self.module.parameters())
        return [
            parameters,
            [p.grad for p in parameters],
            list(self.module.buffers()),
            list(self.optimizer.state.values()),
        ]

    def _empty(self, like: Tensor, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=like.dtype, device="meta" if self.place == "meta" else "cpu")


def _optimizer_of(optimizer: torch.optim.Optimizer, copies: dict[int, Any]) -> torch.optim.Optimizer:
    """Copy the optimizer with its settings and without its state, for the copies of its parameters."""
    result = copy.copy(optimizer)
    result.state = defaultdict(dict)
    result.param_groups = []
    for group in optimizer.param_groups:
        if any(id(p) not in copies for p in group["params"]):
            raise WorkloadError(
                "the optimizer trains a parameter that does not belong to the model", hint="build it from the model"
            )
        copied_group = {**group, "params": [copies[id(p)] for p in group["params"]]}
        copied_group.update({name: False for name in ("foreach", "fused", "capturable") if name in group})
        result.param_groups.append(copied_group)
    return result
