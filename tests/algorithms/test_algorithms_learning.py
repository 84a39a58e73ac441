"""The loop around an algorithm: where it evaluates, when it ends, and with several batches in flight."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wattune.algorithms import Batch, EvaluationPoint, Step, learn


class Pipeline:
    """Keeps ``depth`` batches in flight; the loss of a step is the number that its batch holds."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.taken = 0

    def run(self, batches: Iterable[Batch]) -> Iterator[Step]:
        flying: deque[Batch] = deque()
        for batch in batches:
            self.taken += 1
            flying.append(batch)
            if len(flying) > self.depth:
                yield self._done(flying.popleft())
        while flying:
            yield self._done(flying.popleft())

    @staticmethod
    def _done(batch: Batch) -> Step:
        return Step(samples=len(batch[0]), loss=float(batch[0][0]))


def numbered(size: int, start: int = 0) -> Iterator[Batch]:
    for index in itertools.count(start // size):
        yield torch.full((size,), float(index)), None


def progress(
    depth: int, size: int, *, budget: int, every: int, start: int = 0, **options: Any
) -> list[EvaluationPoint]:
    calls = itertools.count()
    return list(
        learn(
            Pipeline(depth).run,
            numbered(size, start),
            lambda: float(next(calls)),
            budget_samples=budget,
            evaluate_every=every,
            start_samples=start,
            **options,
        )
    )


def test_evaluations_are_on_the_grid() -> None:
    assert [p.samples for p in progress(0, 8, budget=100, every=20)] == [24, 40, 64, 80, 104]
    assert [p.samples for p in progress(0, 10, budget=100, every=20)] == [20, 40, 60, 80, 100]


def test_a_step_over_several_points_is_evaluated_once() -> None:
    assert [p.samples for p in progress(0, 50, budget=160, every=20)] == [50, 100, 150, 200]


def test_the_end_of_the_budget_is_evaluated() -> None:
    assert [p.samples for p in progress(0, 8, budget=30, every=1000)] == [32]
    assert progress(0, 8, budget=32, every=8, start=32) == []


def test_the_loss_is_the_mean_since_the_evaluation_before() -> None:
    # Steps of 8 samples have the losses 0, 1, 2, ...
    results = progress(0, 8, budget=64, every=20)
    assert [(p.samples, p.metric, p.loss) for p in results] == [(24, 0, 1.0), (40, 1, 3.5), (64, 2, 6.0)]


def test_a_loss_that_is_not_finite_becomes_none() -> None:
    def diverging() -> Iterator[Batch]:
        yield torch.full((8,), 1.0), None
        while True:
            yield torch.full((8,), float("nan")), None

    results = learn(Pipeline(0).run, diverging(), lambda: 0.5, budget_samples=24, evaluate_every=8)
    assert [p.loss for p in results] == [1.0, None, None]


@settings(deadline=None)
@given(
    depth=st.integers(0, 5),
    size=st.integers(1, 40),
    budget=st.integers(1, 300),
    every=st.integers(1, 90),
)
def test_several_batches_in_flight_change_nothing(depth: int, size: int, budget: int, every: int) -> None:
    assert progress(depth, size, budget=budget, every=every) == progress(0, size, budget=budget, every=every)


@settings(deadline=None)
@given(depth=st.integers(0, 5), size=st.integers(1, 40), budget=st.integers(1, 300))
def test_no_batch_beyond_the_budget_is_taken(depth: int, size: int, budget: int) -> None:
    algorithm = Pipeline(depth)
    list(learn(algorithm.run, numbered(size), lambda: 0.0, budget_samples=budget, evaluate_every=50))
    assert algorithm.taken == -(-budget // size)


@settings(deadline=None)
@given(size=st.integers(1, 40), budget=st.integers(1, 300), every=st.integers(1, 90), stop=st.integers(0, 9))
def test_resuming_from_any_evaluation_equals_the_uninterrupted_run(
    size: int, budget: int, every: int, stop: int
) -> None:
    whole = progress(0, size, budget=budget, every=every)
    kept = whole[: stop + 1]
    rest = progress(0, size, budget=budget, every=every, start=kept[-1].samples)
    assert [(p.samples, p.loss) for p in kept + rest] == [(p.samples, p.loss) for p in whole]


@pytest.mark.parametrize("depth", [0, 3])
def test_the_contexts_are_around_each_step_and_each_evaluation(depth: int) -> None:
    seen: list[str] = []

    def around(what: str) -> Any:
        @contextmanager
        def context() -> Iterator[None]:
            seen.append(f"{what} begins")
            yield
            seen.append(f"{what} is done")

        return context

    progress(depth, 8, budget=24, every=16, around_step=around("step"), around_evaluation=around("evaluation"))
    order = ["step", "step", "evaluation", "step", "evaluation"]
    assert seen == [f"{what} {end}" for what in order for end in ("begins", "is done")]


def test_the_run_ends_with_its_batches() -> None:
    entered = []

    @contextmanager
    def around() -> Iterator[None]:
        yield
        entered.append(True)

    results = learn(
        Pipeline(2).run,
        itertools.islice(numbered(8), 3),
        lambda: 0.0,
        budget_samples=100,
        evaluate_every=8,
        around_step=around,
    )
    assert [p.samples for p in results] == [8, 16, 24]
    assert len(entered) == 3  # no step's time passes where there was no step


def test_empty_batches_of_a_replay_are_accepted() -> None:
    class Replay(Pipeline):
        @staticmethod
        def _done(batch: Batch) -> Step:
            return Step(samples=8, loss=0.0)

    results = learn(Replay(0).run, itertools.repeat((None, None)), lambda: 0.5, budget_samples=40, evaluate_every=20)
    assert [p.samples for p in results] == [24, 40]
