from __future__ import annotations

import math
import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sample_efficiency.test_sample_efficiency_posterior import SIZES
from tests.support.calls import calls_of

from wattune.sample_efficiency.choice import LogTimes, choose
from wattune.sample_efficiency.posterior import Observation
from wattune.sample_efficiency.scheduler import RunScheduler

VERIFYING = ("to verify the choice", "to repeat the choice and its runner-up")


def device(half: float) -> LogTimes:
    return {size: (math.log1p(half / size), 0.01) for size in SIZES}


def simulate(
    scheduler: RunScheduler,
    critical: float = 150.0,
    sd: float = 0.1,
    *,
    draw: int = 0,
    budget: float = 1e9,
    most: int = 12,
) -> list[Observation]:
    """The runs that the scheduler requests, on a synthetic workload."""
    draws = np.random.default_rng(draw)
    runs: list[Observation] = []
    while (size := scheduler.next(runs)) is not None:
        is_first = len({run.batch_size for run in runs}) < 3
        assert size in scheduler.contenders or is_first or scheduler.reason in VERIFYING
        needed = 1000 * (1 + size / critical) * math.exp(sd * draws.normal())
        allowed = min(budget, scheduler.budget(size) or budget)
        seed = sum(run.batch_size == size for run in runs)
        runs.append(Observation(size, min(needed, allowed), needed <= allowed, seed))
        assert len(runs) <= most
    return runs


@settings(max_examples=25, deadline=None)
@given(
    st.floats(20, 3000),
    st.floats(0.0, 0.3),
    st.one_of(st.none(), st.floats(2, 60)),
    st.integers(0, 1000),
)
def test_invariants_of_every_schedule(critical: float, sd: float, half: float | None, draw: int) -> None:
    scheduler = RunScheduler(SIZES, log_step_times=None if half is None else device(half))
    first = scheduler.contenders
    runs = simulate(scheduler, critical, sd, draw=draw)
    trained = [run.batch_size for run in runs]
    if len(first) < 2:
        assert not runs
        return
    assert trained[0] == max(first)
    assert len(runs) <= 12
    assert len(set(trained)) >= min(3, len(first))
    again = next((place for place, size in enumerate(trained) if size in trained[:place]), len(trained))
    assert len(set(trained[:again])) >= min(4, len(scheduler.contenders)) or again == len(trained)
    assert scheduler.reason
    assert scheduler.next(runs) is None


def test_two_runs_are_one_at_either_end_and_tell_what_more_would_save() -> None:
    scheduler = RunScheduler(SIZES, log_step_times=device(20.0), most=2)
    smallest, *_, largest = scheduler.contenders
    assert [run.batch_size for run in simulate(scheduler)] == [largest, smallest]
    assert re.fullmatch(r"2 runs; more of them would save [\d.]+% of the time to the target at most", scheduler.reason)


def test_noisier_seeds_need_more_runs() -> None:
    quiet = np.mean(
        [len(simulate(RunScheduler(SIZES, log_step_times=device(24)), 150.0, 0.03, draw=d)) for d in range(8)]
    )
    loud = np.mean(
        [len(simulate(RunScheduler(SIZES, log_step_times=device(24)), 150.0, 0.3, draw=d)) for d in range(8)]
    )
    assert 3 <= quiet <= 6
    assert loud > quiet


def test_the_first_runs_are_far_apart_and_cheap() -> None:
    assert [run.batch_size for run in simulate(RunScheduler(SIZES), sd=0.0)][:3] == [128, 16, 64]


def test_pending_runs_count_as_their_expected_result() -> None:
    scheduler = RunScheduler(SIZES, log_step_times=device(24))
    first = scheduler.next([])
    assert first == 128
    second = scheduler.next([], pending=[first])
    third = scheduler.next([], pending=[first, second])
    assert len({first, second, third}) == 3
    runs = [Observation(size, 1000 * (1 + size / 150), True, 0) for size in (first, second)]
    assert scheduler.next(runs, pending=[third]) not in (first, second, third)
    assert scheduler.next(runs, without=[third]) not in (first, second, third)


def test_the_runs_find_the_best_batch_size() -> None:
    lost = []
    for draw in range(10):
        scheduler = RunScheduler(SIZES, log_step_times=device(24))
        runs = simulate(scheduler, 100.0, 0.08, draw=draw)
        assert runs
        mean = scheduler.posterior.mean + [math.log1p(24 / size) for size in SIZES]
        product = [(1 + 24 / size) * (1 + size / 100) for size in SIZES]
        lost.append(product[int(np.argmin(mean))] / min(product) - 1)
    assert np.mean(lost) < 0.015


def test_batch_sizes_that_cannot_be_best_are_not_trained() -> None:
    slow = {**device(2), 4: (math.log(40.0), 0.01), 8: (math.log(20.0), 0.01)}
    scheduler = RunScheduler(SIZES, log_step_times=slow)
    assert not {4, 8} & set(scheduler.contenders)
    assert not {4, 8} & {run.batch_size for run in simulate(scheduler)}


def test_a_batch_size_without_a_step_time_cannot_run() -> None:
    times = {size: value for size, value in device(24).items() if size <= 32}
    scheduler = RunScheduler(SIZES, log_step_times=times)
    assert scheduler.next([]) == 32
    assert {run.batch_size for run in simulate(scheduler)} <= {4, 8, 16, 32}


def test_one_candidate_needs_no_run() -> None:
    scheduler = RunScheduler(SIZES, log_step_times={32: (0.0, 0.0)})
    assert scheduler.next([]) is None
    assert "only one batch size" in scheduler.reason
    nothing = RunScheduler(SIZES, log_step_times={})
    assert nothing.next([]) is None
    assert "no batch size" in nothing.reason


def test_a_target_out_of_reach_is_tried_once_at_every_batch_size() -> None:
    scheduler = RunScheduler(SIZES)
    runs: list[Observation] = []
    while (size := scheduler.next(runs)) is not None:
        assert scheduler.budget(size) is None
        runs.append(Observation(size, 500.0, False, 0))
    assert sorted(run.batch_size for run in runs) == list(SIZES)
    assert scheduler.reason == "no run reached the target"


def test_a_target_that_only_small_batches_reach_is_found() -> None:
    scheduler = RunScheduler(SIZES)
    runs: list[Observation] = []
    while (size := scheduler.next(runs)) is not None:
        runs.append(Observation(size, 1000.0, size <= 8, 0))
    assert any(run.reached for run in runs)
    assert scheduler.posterior.reference == 8
    assert set(SIZES[2:]) >= scheduler.posterior.lost >= {128}


def test_a_missed_target_at_a_promising_size_is_tried_again() -> None:
    times = {size: (math.log1p(200 / size), 0.01) for size in SIZES}
    scheduler = RunScheduler(SIZES, log_step_times=times)
    runs = [Observation(size, 1000.0 + size, True, 0) for size in (16, 32, 64)]
    assert scheduler.next([*runs, Observation(128, 1100.0, False, 0)]) == 128


def test_the_budget_stops_runs_that_cannot_matter() -> None:
    scheduler = RunScheduler(SIZES, log_step_times=device(24))
    assert scheduler.budget(64) is None
    scheduler.next([Observation(size, 1000 * (1 + size / 150), True, 0) for size in (16, 64, 128)])
    # Four batch sizes of four take the longer, so less of them is of use.
    for size in SIZES:
        budget = scheduler.budget(size)
        assert budget is not None
        assert 1.1 * 1000 * (1 + size / 150) < budget < 3.5 * 1000 * (1 + size / 150)
    unknown = RunScheduler(SIZES)
    unknown.next([Observation(size, 1000 * (1 + size / 150), True, 0) for size in (16, 64, 128)])
    budgets = (scheduler.budget(4), unknown.budget(4))
    assert budgets[0] is not None
    assert budgets[1] is not None
    assert budgets[0] < budgets[1]


def test_a_batch_size_with_three_misses_is_given_up() -> None:
    times = {size: (math.log1p(200 / size), 0.01) for size in SIZES}
    scheduler = RunScheduler(SIZES, log_step_times=times)
    runs = [Observation(size, 1000.0 + size, True, 0) for size in (16, 32, 64)]
    scheduler.next([*runs, *(Observation(128, 1100.0, False, seed) for seed in range(3))])
    assert 128 not in scheduler.contenders


def test_one_step_takes_few_calls() -> None:
    scheduler = RunScheduler(SIZES, log_step_times=device(24))
    runs = simulate(scheduler, 150.0, 0.2)
    assert calls_of(lambda: scheduler.next(runs)) < 2500


# ------------------------------------------------------------------------------------------------------- verification


@settings(max_examples=25, deadline=None)
@given(
    st.floats(20, 3000),
    st.floats(0.0, 0.3),
    st.floats(2, 60),
    st.sampled_from(SIZES),
    st.booleans(),
    st.integers(0, 1000),
)
def test_the_own_batch_size_is_always_one_of_the_runs(
    critical: float, sd: float, half: float, own: int, whole: bool, draw: int
) -> None:
    scheduler = RunScheduler(SIZES, log_step_times=device(half), own=own, whole=whole)
    runs = simulate(scheduler, critical, sd, draw=draw)
    assert own in {run.batch_size for run in runs} or not runs
    assert runs or scheduler.contenders == (own,)


@settings(max_examples=25, deadline=None)
@given(st.floats(20, 3000), st.floats(0.0, 0.3), st.floats(2, 60), st.booleans(), st.integers(0, 1000))
def test_the_choice_and_its_neighbors_have_runs_at_the_end(
    critical: float, sd: float, half: float, whole: bool, draw: int
) -> None:
    scheduler = RunScheduler(SIZES, log_step_times=device(half), whole=whole)
    runs = simulate(scheduler, critical, sd, draw=draw)
    if not runs or scheduler.reason.endswith(" runs"):
        return
    counts = scheduler.posterior.runs
    place = SIZES.index(choose(scheduler.posterior, device(half)).best)
    plausible = RunScheduler(SIZES, log_step_times=device(half)).contenders
    assert all(counts[size] for size in SIZES[max(0, place - 1) : place + 2] if size in plausible)
    assert counts[SIZES[place]] >= (2 if whole else 1)


def test_the_choice_and_its_runner_up_are_trained_twice_and_never_a_third_time() -> None:
    times = {16: (0.0, 0.0), 32: (-1.0, 0.0), 64: (-0.5, 0.0)}
    twice = [Observation(size, 1000.0 + 400 * seed, True, seed) for size in times for seed in range(2)]

    def next_after(runs: list[Observation]) -> int | None:
        return RunScheduler(list(times), log_step_times=times, whole=True).next(runs)

    assert next_after(twice) is None
    assert next_after([run for run in twice if (run.batch_size, run.seed) != (32, 1)]) == 32
    assert next_after([run for run in twice if run.seed == 0 or run.batch_size == 32]) == 64


def test_an_unknown_device_has_no_choice_to_verify() -> None:
    scheduler = RunScheduler(SIZES, own=32)
    runs = simulate(scheduler, sd=0.02)
    assert scheduler.reason not in VERIFYING
    assert 32 in {run.batch_size for run in runs}


def test_an_own_batch_size_that_the_device_cannot_run_is_not_trained() -> None:
    times = {size: value for size, value in device(24).items() if size <= 32}
    scheduler = RunScheduler(SIZES, log_step_times=times, own=128)
    assert {run.batch_size for run in simulate(scheduler)} <= {4, 8, 16, 32}
