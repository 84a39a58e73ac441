"""Learning, written once for proxy runs, trainings and replays: steps, and an evaluation every so many samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import nn

from wattune.algorithms.base import Batch, TrainingAlgorithm
from wattune.algorithms.operations import tensors

Around = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Progressed:
    """An evaluation after ``samples`` samples of the whole training.

    ``loss`` is the mean training loss per sample since the evaluation before; None where it is not a finite number.
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
) -> Iterator[Progressed]:
    """Train until the budget is used up; evaluate wherever a step reaches or passes a multiple of ``evaluate_every``.

    So the grid of evaluations is the same for every batch size; a step that passes several of its points is evaluated
    once. The first step to reach ``budget_samples`` is the last, and is evaluated. No more batches are taken in than
    the budget needs, so an algorithm that keeps several in flight ends with all of them done.

    To go on from a checkpoint that was taken at a Progressed, give its ``samples`` as ``start_samples``, and
    ``batches`` from that sample on. ``around_step`` and ``around_evaluation`` give a context for each step and each
    evaluation.
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
        yield Progressed(samples=samples, metric=metric, loss=mean if math.isfinite(mean) else None)
        due = _next_point(samples, evaluate_every)
        loss, since = 0.0, 0


def _next_point(samples: int, evaluate_every: int) -> int:
    return (samples // evaluate_every + 1) * evaluate_every


def _within(batches: Iterable[Batch], budget_samples: int) -> Iterator[Batch]:
    taken = 0
    for batch in batches:
        yield batch
        # A replay's batches hold nothing; it keeps none in flight, so the last Step ends it in time.
        taken += next((tensor.shape[0] for tensor in tensors(batch)), 0)
        if taken >= budget_samples:
            return
