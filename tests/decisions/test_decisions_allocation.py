from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.decisions.test_decisions_curve import SIZES

from wattune.decisions.allocation import Allocation, server_seconds
from wattune.decisions.choice import LogTimes
from wattune.decisions.curve import Observation


def device(half: float) -> LogTimes:
    return {size: (math.log1p(half / size), 0.01) for size in SIZES}


def played(
    allocation: Allocation, critical: float = 150.0, sd: float = 0.1, *, draw: int = 0, budget: float = 1e9
) -> list[Observation]:
    """The runs that the design asks for, on a made-up workload."""
    draws = np.random.default_rng(draw)
    runs: list[Observation] = []
    while (size := allocation.next(runs)) is not None:
        assert size in allocation.contenders or len({run.batch_size for run in runs}) < 3
        needed = 1000 * (1 + size / critical) * math.exp(sd * draws.normal())
        allowed = min(budget, allocation.budget(size) or budget)
        seed = sum(run.batch_size == size for run in runs)
        runs.append(Observation(size, min(needed, allowed), needed <= allowed, seed))
        assert len(runs) <= 12
    return runs


@settings(max_examples=25, deadline=None)
@given(
    st.floats(20, 3000),
    st.floats(0.0, 0.3),
    st.one_of(st.none(), st.floats(2, 60)),
    st.integers(0, 1000),
)
def test_the_promises_of_every_design(critical: float, sd: float, half: float | None, draw: int) -> None:
    allocation = Allocation(SIZES, log_step_times=None if half is None else device(half))
    first = allocation.contenders
    runs = played(allocation, critical, sd, draw=draw)
    trained = [run.batch_size for run in runs]
    if len(first) < 2:
        assert not runs
        return
    assert trained[0] == max(first)
    assert len(runs) <= 12
    assert len(set(trained)) >= min(3, len(first))
    again = next((place for place, size in enumerate(trained) if size in trained[:place]), len(trained))
    assert len(set(trained[:again])) >= min(4, len(allocation.contenders)) or again == len(trained)
    assert allocation.reason
    assert allocation.next(runs) is None


def test_a_few_runs_are_enough_and_more_where_seeds_differ_more() -> None:
    quiet = np.mean([len(played(Allocation(SIZES, log_step_times=device(24)), 150.0, 0.03, draw=d)) for d in range(8)])
    loud = np.mean([len(played(Allocation(SIZES, log_step_times=device(24)), 150.0, 0.3, draw=d)) for d in range(8)])
    assert 3 <= quiet <= 6
    assert loud > quiet


def test_the_first_runs_are_far_apart_and_cheap() -> None:
    assert [run.batch_size for run in played(Allocation(SIZES), sd=0.0)][:3] == [128, 16, 64]


def test_runs_under_way_count_as_what_is_expected_of_them() -> None:
    allocation = Allocation(SIZES, log_step_times=device(24))
    first = allocation.next([])
    assert first == 128
    second = allocation.next([], pending=[first])
    third = allocation.next([], pending=[first, second])
    assert len({first, second, third}) == 3
    runs = [Observation(size, 1000 * (1 + size / 150), True, 0) for size in (first, second)]
    assert allocation.next(runs, pending=[third]) not in (first, second, third)
    assert allocation.next(runs, without=[third]) not in (first, second, third)


def test_the_runs_find_the_best_batch_size() -> None:
    lost = []
    for draw in range(10):
        allocation = Allocation(SIZES, log_step_times=device(24))
        runs = played(allocation, 100.0, 0.08, draw=draw)
        assert runs
        mean = allocation.posterior.mean + [math.log1p(24 / size) for size in SIZES]
        product = [(1 + 24 / size) * (1 + size / 100) for size in SIZES]
        lost.append(product[int(np.argmin(mean))] / min(product) - 1)
    assert np.mean(lost) < 0.015


def test_batch_sizes_that_no_efficiency_rescues_are_not_trained() -> None:
    slow = {**device(2), 4: (math.log(40.0), 0.01), 8: (math.log(20.0), 0.01)}
    allocation = Allocation(SIZES, log_step_times=slow)
    assert not {4, 8} & set(allocation.contenders)
    assert not {4, 8} & {run.batch_size for run in played(allocation)}


def test_a_batch_size_without_a_step_time_cannot_run() -> None:
    times = {size: value for size, value in device(24).items() if size <= 32}
    allocation = Allocation(SIZES, log_step_times=times)
    assert allocation.next([]) == 32
    assert {run.batch_size for run in played(allocation)} <= {4, 8, 16, 32}


def test_one_candidate_needs_no_run() -> None:
    allocation = Allocation(SIZES, log_step_times={32: (0.0, 0.0)})
    assert allocation.next([]) is None
    assert "only one batch size" in allocation.reason
    nothing = Allocation(SIZES, log_step_times={})
    assert nothing.next([]) is None
    assert "no batch size" in nothing.reason


def test_a_target_out_of_reach_is_looked_for_at_every_batch_size_once() -> None:
    allocation = Allocation(SIZES)
    runs: list[Observation] = []
    while (size := allocation.next(runs)) is not None:
        assert allocation.budget(size) is None
        runs.append(Observation(size, 500.0, False, 0))
    assert sorted(run.batch_size for run in runs) == list(SIZES)
    assert allocation.reason == "no run reached the target"


def test_a_target_that_only_small_batches_reach_is_found() -> None:
    allocation = Allocation(SIZES)
    runs: list[Observation] = []
    while (size := allocation.next(runs)) is not None:
        runs.append(Observation(size, 1000.0, size <= 8, 0))
    assert any(run.reached for run in runs)
    assert allocation.posterior.reference == 8
    assert set(SIZES[2:]) >= allocation.posterior.lost >= {128}


def test_a_missed_target_at_a_promising_size_is_tried_again() -> None:
    times = {size: (math.log1p(200 / size), 0.01) for size in SIZES}
    allocation = Allocation(SIZES, log_step_times=times)
    runs = [Observation(size, 1000.0 + size, True, 0) for size in (16, 32, 64)]
    assert allocation.next([*runs, Observation(128, 1100.0, False, 0)]) == 128


def test_a_run_ends_where_it_cannot_be_of_use_any_more() -> None:
    allocation = Allocation(SIZES, log_step_times=device(24))
    assert allocation.budget(64) is None
    allocation.next([Observation(size, 1000 * (1 + size / 150), True, 0) for size in (16, 64, 128)])
    # Four batch sizes of four take the longer, so less of them is of use.
    for size in SIZES:
        budget = allocation.budget(size)
        assert budget is not None
        assert 1.1 * 1000 * (1 + size / 150) < budget < 3.5 * 1000 * (1 + size / 150)
    unknown = Allocation(SIZES)
    unknown.next([Observation(size, 1000 * (1 + size / 150), True, 0) for size in (16, 64, 128)])
    budgets = (allocation.budget(4), unknown.budget(4))
    assert budgets[0] is not None
    assert budgets[1] is not None
    assert budgets[0] < budgets[1]


def test_a_batch_size_that_misses_again_and_again_is_given_up() -> None:
    times = {size: (math.log1p(200 / size), 0.01) for size in SIZES}
    allocation = Allocation(SIZES, log_step_times=times)
    runs = [Observation(size, 1000.0 + size, True, 0) for size in (16, 32, 64)]
    allocation.next([*runs, *(Observation(128, 1100.0, False, seed) for seed in range(3))])
    assert 128 not in allocation.contenders


def test_runs_that_follow_no_curve_are_less_sure() -> None:
    def runs(bump: float) -> list[Observation]:
        return [
            Observation(s, 1000 * (1 + s / 150) * math.exp(bump * (-1) ** place), True, seed)
            for place, s in enumerate(SIZES)
            for seed in range(2)
            if s != 8
        ]

    smooth, rough = Allocation(SIZES, log_step_times=device(24)), Allocation(SIZES, log_step_times=device(24))
    smooth.next(runs(0.0))
    rough.next(runs(0.35))
    assert rough.posterior.misfit
    assert rough.posterior.proxy_covariance[1, 1] > 4 * smooth.posterior.proxy_covariance[1, 1]


def test_small_batches_cost_more_time_on_the_server() -> None:
    costs = [server_seconds(size) for size in SIZES]
    assert costs == sorted(costs, reverse=True)


def test_more_runs_than_twelve_are_never_asked_for() -> None:
    allocation = Allocation(SIZES, log_step_times=device(24))
    runs = [Observation(SIZES[n % 6], 1000.0 * math.exp(0.5 * (-1) ** n), True, n // 6) for n in range(12)]
    assert allocation.next(runs) is None
    assert "12 runs" in allocation.reason


@pytest.mark.slow
def test_one_step_takes_a_moment() -> None:
    allocation = Allocation(SIZES, log_step_times=device(24))
    runs = played(allocation, 150.0, 0.2)
    start = time.process_time()
    for _ in range(20):
        allocation.next(runs)
    assert (time.process_time() - start) / 20 < 0.1  # far above what it takes: that is for the benchmark
