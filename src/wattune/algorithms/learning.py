"""The learning loop of proxy runs, training runs and replays: steps, and evaluations at fixed numbers of samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import nn

from wattune.algorithms.base import Batch, TrainingAlgorithm
from wattune.algorithms.counting.aten import tensors

Around = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class EvaluationPoint:
    """An evaluation after ``samples`` samples of the whole run.

    ``loss``: mean training loss per sample since the previous evaluation; None if it is not finite.
    """

    samples: int
    metric: float
    loss: float | None


def learn(
    algorithm: TrainingAlgorithm,
    batches: Iterable[Batch],
    evaluate: Callable[[nn.Module], float],
    *,
    budget_samples: int,
    evaluate_every: int,
    start_samples: int = 0,
    around_step: Around = nullcontext,
    around_evaluation: Around = nullcontext,
) -> Iterator[EvaluationPoint]:
    """Train until the budget is used up; evaluate whenever a step reaches or passes a multiple of ``evaluate_every``.

    The grid of evaluations is therefore the same for every batch size; a step that passes several of its points is
    evaluated once. The first step to reach ``budget_samples`` is the last, and is evaluated. No more batches are taken
    than the budget needs, so an algorithm with several batches in flight ends with all of them done.

    To resume from a checkpoint taken at an evaluation, pass its ``samples`` as ``start_samples``, and ``batches`` from
    that sample on. ``around_step`` and ``around_evaluation`` return a context for each step and each evaluation.
    """
    steps = iter(algorithm.run(_within(batches, budget_samples - start_samples)))
    samples = start_samples
    due = _next_point(samples, evaluate_every)
    loss, since = 0.0, 0
    while samples < budget_samples:
        try:
            with around_step():
                step = next(steps)
        except StopIteration:
            return
        samples += step.samples
        loss, since = loss + step.loss * step.samples, since + step.samples
        if samples < min(due, budget_samples):
            continue
        with around_evaluation():
            metric = evaluate(algorithm.module)
        mean = loss / since
        yield EvaluationPoint(samples=samples, metric=metric, loss=mean if math.isfinite(mean) else None)
        due = _next_point(samples, evaluate_every)
        loss, since = 0.0, 0


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
