"""Gradient norms of two sizes in one step, where a batch goes through the model in parts anyway."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from wattune.algorithms.counting import split
from wattune.algorithms.spec import name_of
from wattune.decisions.noise import NoiseScale, Norms
from wattune.records import Plan

EVERY = 4
"""At most every so many steps are looked at: the norms take a little time, and the steps are being timed."""

MOST = 64
"""Steps that are looked at."""


class GradientWatch:
    """Looks at some of the first ``samples`` of a training: at the gradient after the first part of the batch, and
    after all of it, which together tell the noise scale.

    No pass is added. Where the batch is not split there is one size only, and an algorithm other than backpropagation
    gives no exact gradients: then there is no estimate, and ``why_not`` says so. Batch normalisation sees the parts, so
    with small ones the difference between the two gradients is not only noise.
    """

    def __init__(self, module: nn.Module, plan: Plan, samples: float | None):
        self._module, self._batch_size = module, plan.batch_size
        self._parts = split(plan.batch_size, plan.micro_batch_size or plan.batch_size)
        self._samples = samples
        self._norms = Norms()
        steps = 0.0 if samples is None else samples / plan.batch_size
        self._every = max(EVERY, math.ceil(steps / MOST))
        self._never = ""
        if name_of(plan.algorithm) != "backprop":
            self._never = f"{plan.algorithm} gives no exact gradients"
        elif len(self._parts) < 2:
            self._never = "the batch is not split"

    @property
    def why_not(self) -> str:
        """Why ``estimate`` is None, where it is."""
        return self._never or "the gradients of so few steps and samples do not tell it"

    @contextmanager
    def step(self, samples: int) -> Iterator[None]:
        """Around a step that begins after so many samples."""
        number = samples // self._batch_size
        if self._never or self._samples is None or samples >= self._samples or number % self._every:
            yield
            return
        seen = _Seen(len(self._parts))
        trained = (parameter for parameter in self._module.parameters() if parameter.requires_grad)
        hooks = [p.register_post_accumulate_grad_hook(seen) for p in trained]  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        if seen.first and seen.last:
            first, last = (float(torch.stack(norms).square().sum()) for norms in (seen.first, seen.last))
            small, big = self._parts[0], sum(self._parts)
            # The gradients of a part are weighted by its share of the batch. A scaled loss scales both alike.
            self._norms.add(small, first * (big / small) ** 2, big, last)

    def estimate(self) -> NoiseScale | None:
        """The noise scale so far; None where it is not known."""
        return self._norms.estimate()

    def state_dict(self) -> dict[str, Any]:
        """What a later watch needs to go on from here, as JSON values."""
        return self._norms.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        self._norms.load_state_dict(state)


class _Seen:
    """Called after each part's gradient was added to that of a parameter: keeps the norms of the first and the last."""

    def __init__(self, parts: int):
        self.first: list[Tensor] = []
        self.last: list[Tensor] = []
        self._parts = parts
        self._calls: dict[int, int] = {}

    def __call__(self, parameter: Tensor) -> None:
        calls = self._calls[id(parameter)] = self._calls.get(id(parameter), 0) + 1
        if calls not in (1, self._parts) or parameter.grad is None or parameter.grad.is_sparse:
            return
        with torch.no_grad():
            norm = torch.linalg.vector_norm(parameter.grad).float()
        (self.first if calls == 1 else self.last).append(norm)
