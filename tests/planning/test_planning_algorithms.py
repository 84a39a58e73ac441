"""Plans over several training algorithms, under a cap and a limit of memory."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.planning_tables import KEY, board, curve

from wattune.cap import PowerCap
from wattune.errors import CapError, InputError, NoFeasiblePoint, RecordError
from wattune.goal import Goal
from wattune.planning import learns_as, plan, plan_algorithms
from wattune.records import AbortedProbe, AlgorithmChoice, Plan, ProfileTable, SampleEfficiency

MB = 1e6
CHECKPOINTED, FGD, ASYNC = "backprop:checkpoint=auto", "forward-gradient", "async-fgd@2:modules=4"


def table(algorithm: str, *, slower: float = 1.0, base_mb: float = 10.0, sample_mb: float = 1.0) -> ProfileTable:
    """The board of the other tests, so much slower, and with memory that grows with the batch."""
    made = board(reference=False)
    cells = tuple(
        c.model_copy(update={"step_s": c.step_s * slower, "memory_bytes": (base_mb + sample_mb * c.batch_size) * MB})
        for c in made.cells
    )
    key = KEY.model_copy(update={"algorithm": algorithm})
    return made.model_copy(update={"algorithm": algorithm, "cells": cells, "key": key})


def samples(algorithm: str, times: float = 1.0) -> SampleEfficiency:
    return curve(samples=1000.0 * times).model_copy(update={"algorithm": algorithm})


PROFILES = (
    table("backprop", sample_mb=2.0),
    table(CHECKPOINTED, slower=1.3, sample_mb=0.9),
    table(FGD, slower=1.1, base_mb=5.0, sample_mb=0.1),
)
CURVES = (samples("backprop"), samples(FGD, 40.0))


def entry(found: Plan, algorithm: str) -> AlgorithmChoice:
    return next(one for one in found.algorithms if one.algorithm == algorithm)


def test_the_fastest_to_the_target_is_chosen_and_the_others_say_how_much_slower():
    found = plan_algorithms(PROFILES, CURVES, cap=PowerCap(4.0))
    alone = plan(PROFILES[0], CURVES[0], cap=PowerCap(4.0))
    assert (found.algorithm, found.point, found.predicted_s) == ("backprop", alone.point, alone.predicted_s)
    assert [one.algorithm for one in found.algorithms] == ["backprop", CHECKPOINTED, FGD]
    ours, again, forward = found.algorithms
    assert (ours.why_not, ours.times_chosen) == (None, 1.0)
    assert again.times_chosen == pytest.approx(1.3)
    assert again.why_not == "1.30 x slower"
    assert forward.times_chosen == pytest.approx(44.0)
    assert forward.why_not == "44.00 x slower"
    best = CURVES[0].at(found.batch_size).relative_samples
    assert ours.relative_samples == again.relative_samples == best
    assert forward.relative_samples == pytest.approx(40 * best)
    assert found.algorithm_cost is None


GOALS = (
    Goal("energy"),
    Goal("edp"),
    Goal("energy", max_slowdown=0.1),
    Goal("energy", deadline_s=6.0),
    Goal("time", energy_j=20.0),
)


@example(goal=GOALS[2], slower=1.1, power=0.5)
@given(st.sampled_from(GOALS), st.floats(0.7, 1.5), st.floats(0.5, 1.2))
def test_for_another_goal_no_other_algorithm_has_a_better_point(goal, slower, power):
    other = table(CHECKPOINTED, slower=slower)
    frugal = [
        c.model_copy(update={"power_mean_w": c.power_mean_w * power, "power_peak_w": c.power_peak_w * power})
        for c in other.cells
    ]
    profiles = (PROFILES[0], other.model_copy(update={"cells": tuple(frugal)}))
    curves, cap = CURVES[:1], PowerCap(4.0)
    found = plan_algorithms(profiles, curves, cap=cap, goal=goal)
    fastest_s = min(plan(profile, curves[0], cap=cap).predicted_s for profile in profiles)
    every = [
        (one.predicted_s, one.predicted_j)
        for profile in profiles
        for one in plan(profile, curves[0], cap=cap).candidates
        if one.feasible and one.predicted_s is not None
    ]
    if goal.max_slowdown is not None:
        every = [one for one in every if one[0] <= 1.1 * fastest_s * (1 + 1e-9)]
    if goal.deadline_s is not None:
        every = [one for one in every if one[0] <= goal.deadline_s]
    if goal.energy_j is not None:
        every = [one for one in every if one[1] <= goal.energy_j] or [min(every, key=lambda one: one[1])]
    value = {"energy": lambda s, j: j, "edp": lambda s, j: s * j, "time": lambda s, j: s}[goal.aim]
    assert value(found.predicted_s, found.predicted_j) == pytest.approx(min(value(*one) for one in every))
    assert found.goal == goal
    assert {one.why_not is None for one in found.algorithms} == {True, False} or len(found.algorithms) == 1


def test_a_memory_limit_leaves_what_fits():
    found = plan_algorithms(PROFILES, CURVES, cap=PowerCap(4.0), memory_bytes=16 * MB)
    assert found.algorithm == CHECKPOINTED
    assert (found.batch_size, found.predicted_memory_bytes) == (4, pytest.approx(13.6 * MB))
    assert found.memory_limit_bytes == 16 * MB
    why = next(c for c in found.candidates if c.batch_size == 8).why_not
    assert why == "needs 17.2 MB, above the limit of 16 MB"
    assert entry(found, "backprop").why_not == "needs 18 MB, above the limit of 16 MB"
    assert entry(found, "backprop").memory_bytes == 18 * MB
    assert not entry(found, "backprop").feasible


def test_a_forward_gradient_is_chosen_where_nothing_else_fits_and_says_what_it_costs():
    found = plan_algorithms(PROFILES, CURVES, cap=PowerCap(4.0), memory_bytes=12 * MB)
    assert found.algorithm == FGD
    relative = 40 * CURVES[1].at(found.batch_size).relative_samples
    assert f"{FGD} needs {relative:.3g} times the samples that backprop needs at batch size 128" in found.algorithm_cost
    assert "it was chosen since backprop needs 18 MB, above the limit of 12 MB; " in found.algorithm_cost
    assert "backprop:checkpoint=auto needs 13.6 MB, above the limit of 12 MB" in found.algorithm_cost
    assert found.key is not None
    assert found.key.algorithm == FGD


def test_a_forward_gradient_that_is_faster_all_the_same_says_so():
    found = plan_algorithms(PROFILES, (samples("backprop"), samples(FGD, 0.5)), cap=PowerCap(4.0))
    assert found.algorithm == FGD
    assert "faster all the same: backprop takes 1.82 times as long" in found.algorithm_cost


def test_an_algorithm_may_lose_to_the_cap():
    hot = table("backprop")
    cells = tuple(c.model_copy(update={"power_peak_w": c.power_peak_w + 5}) for c in hot.cells)
    found = plan_algorithms([hot.model_copy(update={"cells": cells}), PROFILES[2]], CURVES, cap=PowerCap(4.0))
    assert found.algorithm == FGD
    assert (entry(found, "backprop").why_not or "").startswith("no measured point stays under the cap: 4 W; the lowest")


def test_nothing_fits_at_all():
    with pytest.raises(NoFeasiblePoint, match=r"memory limit: 1 MB; allowed: the smallest, batch size 4, needs 18 MB"):
        plan_algorithms(PROFILES, CURVES, cap=PowerCap(4.0), memory_bytes=1 * MB)
    with pytest.raises(CapError):
        plan_algorithms(PROFILES, CURVES, cap=PowerCap(0.5))


def test_a_target_that_was_not_reached_with_one_algorithm():
    never = samples(FGD).model_copy(
        update={"points": tuple(p.model_copy(update={"relative_samples": None}) for p in CURVES[1].points)}
    )
    found = plan_algorithms(PROFILES, (CURVES[0], never), cap=PowerCap(4.0))
    assert "no proxy run reached the target" in (entry(found, FGD).why_not or "")


def test_one_profile_under_a_memory_limit():
    found = plan(PROFILES[0], CURVES[0], cap=PowerCap(4.0), memory_bytes=80 * MB)
    assert found.batch_size <= 35
    assert {c.why_not for c in found.candidates if c.batch_size == 128} == {"needs 266 MB, above the limit of 80 MB"}
    assert len(found.candidates) == len(PROFILES[0].cells)
    assert found.algorithms == ()
    # The largest batch that fits is that of the memory limit.
    largest = next(row for row in found.baselines if row.rule == "largest batch, own clock")
    assert largest.batch_size == 32


def test_memory_is_that_of_a_batch_in_micro_batches():
    cells = list(PROFILES[0].cells)
    cells += [c.model_copy(update={"micro_batch_size": 4, "memory_bytes": 18 * MB}) for c in cells if c.batch_size > 4]
    found = plan(
        PROFILES[0].model_copy(update={"cells": tuple(cells)}), CURVES[0], cap=PowerCap(4.0), memory_bytes=20 * MB
    )
    assert (found.batch_size, found.micro_batch_size) == (8, 4)


def test_what_is_not_known_to_fit_does_not():
    unknown = board(reference=False)
    with pytest.raises(NoFeasiblePoint, match="does not say how much memory"):
        plan(unknown, curve(), cap=PowerCap(4.0), memory_bytes=80 * MB)
    assert plan(unknown, curve(), cap=PowerCap(4.0)).predicted_memory_bytes is None
    partly = [c if c.batch_size == 8 else c.model_copy(update={"memory_bytes": None}) for c in PROFILES[0].cells]
    found = plan(
        PROFILES[0].model_copy(update={"cells": tuple(partly)}), curve(), cap=PowerCap(4.0), memory_bytes=80 * MB
    )
    assert found.batch_size == 8
    why = next(c.why_not for c in found.candidates if c.batch_size == 4)
    assert why == "the profile does not say how much memory it needs, and the limit is 80 MB"


def test_one_cell_of_a_row_that_knows_is_enough_and_stopped_probes_go_with_it():
    cells = [c for c in PROFILES[0].cells if c.batch_size != 128]
    cells = [c if c.clock_mhz == 76.8 else c.model_copy(update={"memory_bytes": None}) for c in cells]
    stopped = AbortedProbe(batch_size=64, clock_mhz=921.6, cap_w=4.0, power_w=5.0)
    profile = PROFILES[0].model_copy(update={"cells": tuple(cells), "aborted": (stopped,)})
    found = plan(profile, curve(), cap=PowerCap(4.0), memory_bytes=80 * MB)
    assert found.batch_size <= 32
    why = {c.why_not for c in found.candidates if c.batch_size == 64}
    assert why == {"needs 138 MB, above the limit of 80 MB"}


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf"), True])
def test_limits_that_are_none(limit):
    with pytest.raises(InputError, match="memory_bytes"):
        plan(PROFILES[0], CURVES[0], cap=PowerCap(4.0), memory_bytes=limit)


@pytest.mark.parametrize(
    ("profiles", "curves", "said"),
    [
        (PROFILES, [CURVES[0]], "there is no efficiency record of the profile's training algorithm: forward-gradient"),
        (PROFILES[2:], [CURVES[1]], "there is no efficiency record of backprop"),
        (PROFILES, [CURVES[0], curve(samples=None).model_copy(update={"algorithm": FGD})], "without absolute samples"),
        ([PROFILES[0], PROFILES[0]], CURVES, "two profiles are of one training algorithm: backprop"),
        (PROFILES, [*CURVES, samples(CHECKPOINTED)], "same gradients: backprop, backprop:checkpoint=auto"),
        (PROFILES, [CURVES[0], CURVES[1].model_copy(update={"target": 0.8})], r"target \(0.8, not 0.9\)"),
        (PROFILES, [CURVES[0], CURVES[1].model_copy(update={"workload": "x"})], "workload"),
        ([PROFILES[0], PROFILES[2].model_copy(update={"device": "x"})], CURVES, r"device \(x, not a board\)"),
        (
            [PROFILES[0], PROFILES[2].model_copy(update={"key": KEY.model_copy(update={"model": "x"})})],
            CURVES,
            r"that of forward-gradient differs in: model \(x, not abc\)",
        ),
    ],
)
def test_records_that_do_not_belong_together(profiles, curves, said):
    with pytest.raises(RecordError, match=said) as error:
        plan_algorithms(profiles, curves, cap=PowerCap(4.0))
    assert "\n" not in str(error.value)


def test_checkpointing_goes_by_the_curve_of_backprop_and_the_other_way_round():
    for algorithm in ("backprop", CHECKPOINTED):
        found = plan_algorithms(PROFILES[:2], [samples(algorithm)], cap=PowerCap(4.0))
        assert found.algorithm == "backprop"
    assert plan(PROFILES[1], samples("backprop"), cap=PowerCap(4.0)).algorithm == CHECKPOINTED
    with pytest.raises(RecordError, match="another training algorithm"):
        plan(PROFILES[2], samples("backprop"), cap=PowerCap(4.0))


def test_what_matters_to_the_samples():
    assert learns_as("backprop:checkpoint=4") == "backprop"
    assert learns_as("backprop:last=1") == "backprop:last=1"
    assert learns_as("async-fgd@2:backend=threads,modules=4") == learns_as(ASYNC) == ASYNC
    assert learns_as("forward-gradient:directions=2") == "forward-gradient:directions=2"


@given(
    cap_w=st.floats(2.3, 7.0),
    limit_mb=st.floats(6.0, 300.0),
    slower=st.floats(0.5, 3.0),
    times=st.floats(0.2, 60.0),
)
def test_the_choice_is_the_least_of_all_feasible_cells(cap_w, limit_mb, slower, times):
    profiles = [PROFILES[0], PROFILES[1], table(FGD, slower=slower, base_mb=5.0, sample_mb=0.1)]
    curves = [samples("backprop"), samples(FGD, times)]
    by_hand = [
        (c.step_s / c.batch_size * own.at(c.batch_size).relative_samples * own.reference_samples, profile.algorithm)
        for profile, own in ((profiles[0], curves[0]), (profiles[1], curves[0]), (profiles[2], curves[1]))
        for c in profile.cells
        if c.power_peak_w <= cap_w and c.memory_bytes <= limit_mb * MB
    ]
    cap = PowerCap(cap_w, window="peak")
    if not by_hand:
        with pytest.raises((CapError, NoFeasiblePoint)):
            plan_algorithms(profiles, curves, cap=cap, memory_bytes=limit_mb * MB)
        return
    found = plan_algorithms(profiles, curves, cap=cap, memory_bytes=limit_mb * MB)
    assert found.predicted_s == pytest.approx(min(by_hand)[0])
    assert found.predicted_memory_bytes <= limit_mb * MB
    for one in found.algorithms:
        own = [seconds for seconds, algorithm in by_hand if algorithm == one.algorithm]
        assert one.feasible == bool(own)
        if own:
            assert one.predicted_s == pytest.approx(min(own))
            assert one.times_chosen >= 1
