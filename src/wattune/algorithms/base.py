"""The part of a workload that a training algorithm needs, and the learning loop.

The loop is that of proxy runs, training runs and replays: steps, and evaluations at fixed numbers of samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from wattune.algorithms.counting.aten import tensors
from wattune.errors import WorkloadError

Batch = tuple[Any, Any]
"""Inputs and targets of one optimizer step; the first dimension counts samples."""


class Trainable(Protocol):
    """The part of a workload that an algorithm needs (``wattune.workloads.Workload`` implements it)."""

    @property
    def data_type(self) -> str:
        """Data type that a step computes in."""

    @property
    def host_s_per_sample(self) -> float:
        """CPU seconds to load one sample."""

    def model(self, seed: int) -> nn.Module:
        """The model with its initial weights; ``seed`` determines the reinitialised layers. Frozen parameters do not
        require gradients."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor | float:
        """Mean loss over the batch, a scalar; a number, or a tensor without a gradient, if it is a black box."""

    def optimizer(self, model: nn.Module, batch_size: int) -> torch.optim.Optimizer:
        """Make an optimizer of the trained parameters with the learning rate of this batch size."""

    def example(self, batch_size: int) -> Batch:
        """Make a random batch on the CPU with the shapes and types of the data, for counting and profiling."""


def evaluated_loss(trainable: Trainable, output: Tensor, target: Any) -> Any:
    """The mean loss, a tensor or a number. Raises: WorkloadError if NumPy computes it where a gradient is needed."""
    try:
        return trainable.loss(output, target)
    except RuntimeError as error:
        if "Can't call numpy() on Tensor that requires grad" not in str(error):
            raise
        raise no_gradient("computed by NumPy") from error


def differentiable_loss(trainable: Trainable, output: Tensor, target: Any) -> Tensor:
    """The mean loss of an output that requires a gradient. Raises: WorkloadError if the loss has none."""
    loss = evaluated_loss(trainable, output, target)
    if isinstance(loss, Tensor) and loss.requires_grad:
        return loss
    raise no_gradient(loss)


def no_gradient(loss: Any) -> WorkloadError:
    """The error for a black box. ``loss``: a number, a detached tensor, or words that say how the loss is computed."""
    named = "a detached tensor" if isinstance(loss, Tensor) else type(loss).__name__
    return WorkloadError(
        "the loss has no gradient",
        value=loss if isinstance(loss, str) else named,
        allowed="a tensor computed from the model's output by differentiable operations",
        hint="train with forward-gradient:perturb=differences, which only evaluates the loss",
    )


@dataclass(frozen=True)
class Step:
    """A completed optimizer step: its number of samples and their mean loss."""

    samples: int
    loss: float


Run = Callable[[Iterable[Batch]], Iterator[Step]]
"""Trains on batches, and yields one Step for each."""

Around = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class EvaluationPoint:
    """An evaluation after ``samples`` samples of the whole run.

    ``loss``: mean training loss per sample since the previous evaluation; None if it is not finite.
    """

    samples: int
    metric: float
    loss: float | None


@dataclass
class LossTally:
    """Sum of loss times samples since the last evaluation, and the number of those samples."""

    loss: float = 0.0
    samples: int = 0


def learn(
    run: Run,
    batches: Iterable[Batch],
    evaluate: Callable[[], float],
    *,
    budget_samples: int,
    evaluate_every: int,
    start_samples: int = 0,
    around_step: Around = nullcontext,
    around_evaluation: Around = nullcontext,
    tally: LossTally | None = None,
) -> Iterator[EvaluationPoint]:
    """Train by ``run`` until the budget is used up; evaluate when a step reaches or passes a multiple of
    ``evaluate_every``.

    The grid of evaluations is therefore the same for every batch size; a step that passes several of its points is
    evaluated once. The first step to reach ``budget_samples`` is the last, and is evaluated. No more batches are taken
    than the budget needs, so an algorithm with several batches in flight ends with all of them done.

    To resume from a checkpoint taken at an evaluation, pass its ``samples`` as ``start_samples``, and ``batches`` from
    that sample on. ``around_step`` and ``around_evaluation`` return a context for each step and each evaluation.
    A checkpoint that was taken between two evaluations needs its ``tally`` as well.
    """
    tally = tally or LossTally()
    steps = iter(run(_within(batches, budget_samples - start_samples)))
    samples = start_samples
    due = _next_point(samples - tally.samples, evaluate_every)  # an evaluation may have been due at the checkpoint
    while samples < budget_samples or tally.samples:
        if samples < min(due, budget_samples):
            try:
                with around_step():
                    step = next(steps)
            except StopIteration:
                return
            samples += step.samples
            tally.loss, tally.samples = tally.loss + step.loss * step.samples, tally.samples + step.samples
            continue
        with around_evaluation():
            metric = evaluate()
        mean = tally.loss / tally.samples
        tally.loss, tally.samples = 0.0, 0
        yield EvaluationPoint(samples=samples, metric=metric, loss=mean if math.isfinite(mean) else None)
        due = _next_point(samples, evaluate_every)


def _next_point(samples: int, evaluate_every: int) -> int:
    return (samples // evaluate_every + 1) * evaluate_every


def _within(batches: Iterable[Batch], budget_samples: int) -> Iterator[Batch]:
    samples = 0
    for batch in batches:
        yield batch
        # A replay's batches are empty; it has none in flight, so the last Step ends it in time.
        samples += next((tensor.shape[0] for tensor in tensors(batch)), 0)
        if samples >= budget_samples:
            return
