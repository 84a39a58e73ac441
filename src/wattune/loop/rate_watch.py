"""A watch on the loss while the learning rate is above the user's, and the way back from there."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wattune.loop.optimizer_step import trained
from wattune.loop.recipe import Recipe

WINDOW = 10
"""Steps whose losses are looked at together."""

WEIGHT = 0.02
"""Weight of a new step in the running mean and variance of the loss."""

SIGMAS = 4.0
"""Standard errors by which the mean loss of a window may exceed the lowest so far..."""

LOST = 0.1
"""...beside this share of what training has gained since its first window."""

COPY_EVERY = 5
"""Windows between two copies of the parameters."""

COPY_SHARE = 0.05
"""Largest share of the device's memory that a copy may take."""

MOST_RETURNS = 3
"""Returns at the user's own rate after the one from a higher rate; then training is left to itself."""


class LossWatch:
    """Losses of the steps of a run, and the level above which training is worse than it was."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._mean = self._variance = 0.0
        self._lowest = math.inf

    def is_worse(self, losses: Sequence[float], *, raised: bool) -> bool:
        """Take in a window. ``raised``: its learning rate was above the user's, so that it may be to blame.

        Returns: True if it is not finite, or higher than chance and the progress so far allow.
        """
        now = mean(losses)
        if raised and (not math.isfinite(now) or (self._first is not None and now > self._level(len(losses)))):
            return True
        if not math.isfinite(now):
            return False
        if self._first is None:
            self._first = self._mean = now
            self._variance = mean((loss - now) ** 2 for loss in losses)
        for loss in losses:
            self._variance += WEIGHT * ((loss - self._mean) ** 2 - self._variance)
            self._mean += WEIGHT * (loss - self._mean)
        # A loss that rises at the user's own rate is the recipe's business.
        self._lowest = min(self._lowest, self._mean) if raised else self._mean
        return False

    def _level(self, count: int) -> float:
        assert self._first is not None
        gained = max(0.0, self._first - self._lowest)
        return self._lowest + SIGMAS * math.sqrt(self._variance / count) + LOST * gained


class TrainingCopy:
    """A copy of the trained parameters, the buffers and the optimizer's state, all on their own devices."""

    def __init__(self, model: nn.Module, optimizer: Optimizer):
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in (*trained(optimizer), *model.buffers())]
        self._optimizer = optimizer
        self._state = {p: {k: _copied(v) for k, v in state.items()} for p, state in optimizer.state.items()}

    @property
    def is_finite(self) -> bool:
        """True if no parameter, buffer or state of the optimizer is infinite or NaN."""
        state = (v for values in self._state.values() for v in values.values() if isinstance(v, Tensor))
        tensors = (*(saved for _, saved in self._tensors), *state)
        return all(bool(torch.isfinite(t.coalesce().values() if t.is_sparse else t).all()) for t in tensors)

    @torch.no_grad()
    def restore(self) -> None:
        """Write all of it back."""
        for tensor, saved in self._tensors:
            tensor.copy_(saved)
        state = self._optimizer.state
        state.clear()
        state.update({p: {k: _copied(v) for k, v in saved.items()} for p, saved in self._state.items()})


def copy_bytes(model: nn.Module, optimizer: Optimizer) -> int:
    """Bytes of a ``TrainingCopy``."""
    state = [v for values in optimizer.state.values() for v in values.values() if isinstance(v, Tensor)]
    return sum(tensor.nbytes for tensor in (*trained(optimizer), *model.buffers(), *state))


class RateWatch:
    """Watches the losses of a loop, and takes it back to the user's recipe before a raised learning rate ruins it.

    ``give_up`` is called with the reason, once: batch sizes above the user's are then to be left out. After that, the
    watch continues: the raised rate has led training to where it would not have come otherwise. ``mean``: the mean of a
    tensor over the ranks of a job, so that all of them go back at the same step.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        recipe: Recipe,
        memory_bytes: float | None,
        give_up: Callable[[str], None],
        mean: Callable[[Tensor], Tensor] = lambda own: own,
    ):
        self._model, self._optimizer, self._recipe = model, optimizer, recipe
        self._most_bytes = math.inf if memory_bytes is None else COPY_SHARE * memory_bytes
        self._give_up, self._mean = give_up, mean
        self._watch = LossWatch()
        self._losses: list[Tensor] = []
        self._step: Tensor | None = None
        self._copy: TrainingCopy | None = None
        self._windows = self._returns = 0
        self._is_over = False
        self._is_raised = False  # in the present window
        self._place = next(model.parameters()).device

    def add(self, loss: Tensor, share: float) -> None:
        """Add the mean loss of a part of a step, which has this share of its samples."""
        part = loss.detach().float() * share
        self._step = part if self._step is None else self._step + part

    def end_step(self) -> None:
        """End a step, and go back if training has become worse."""
        recipe, step, self._step = self._recipe, self._step, None
        if step is None or self._is_over:
            return
        self._losses.append(step)
        self._is_raised |= recipe.factor > 1.0 or not recipe.may_rise
        if self._copy is None and (recipe.ceiling > 1.0 or not recipe.may_rise):
            self._keep_copy()
        if len(self._losses) < WINDOW or self._is_over:
            return
        losses = self._mean(torch.stack(self._losses)).tolist()  # the one time that it waits for a GPU
        self._losses = []
        raised, self._is_raised = self._is_raised, False
        if self._watch.is_worse(losses, raised=raised):
            self._go_back(mean(losses))
            return
        self._windows += 1
        if self._copy is not None and self._windows % COPY_EVERY == 0:
            self._keep_copy()

    def _keep_copy(self) -> None:
        is_too_large = copy_bytes(self._model, self._optimizer) > self._most_bytes
        if self._mean(torch.tensor(float(is_too_large), device=self._place)) > 0:
            self._end("there is no memory for a copy of the parameters, to go back to if it were too high")
            return
        new = TrainingCopy(self._model, self._optimizer)
        if self._mean(torch.tensor(float(new.is_finite), device=self._place)) == 1:
            self._copy = new
        elif self._copy is None:
            self._end("the parameters are not finite any more, so that there is nothing to go back to")

    def _end(self, reason: str) -> None:
        """Watch no more, and keep to the user's own rate."""
        self._is_over = True
        if self._recipe.may_rise:
            self._recipe.hold()
            self._give_up(reason)

    def _go_back(self, loss: float) -> None:
        assert self._copy is not None  # kept since the rate was first raised, or since the run was resumed
        if not self._recipe.may_rise and self._returns == MOST_RETURNS:
            self._is_over, self._copy = True, None
            return
        self._copy.restore()
        if not self._recipe.may_rise:
            self._returns += 1
            return
        factor = self._recipe.factor
        self._recipe.hold()
        self._give_up(f"at {factor:.3g} times yours the loss rose to {loss:.4g}, and training went back to before that")


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)
