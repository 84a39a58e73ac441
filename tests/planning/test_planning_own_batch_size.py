"""The user's own batch size in a plan: kept, left for a surely faster one, or not comparable."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.support.planning_tables import BATCHES, board

from wattune.cap import PowerCap
from wattune.goal import Goal
from wattune.planning import pick, plan
from wattune.records import Plan, ProfileTable, SampleEfficiency
from wattune.reporting import plan_text, summary
from wattune.sample_efficiency.choice import pooled_curve
from wattune.sample_efficiency.posterior import Observation, fit

CAP = PowerCap(6.0)


def efficiency(own: int | None, *, sd: float = 0.02, without: tuple[int, ...] = ()) -> SampleEfficiency:
    """Two runs per batch size that need the more samples the larger the batch; one at 128 misses the target."""
    draws = np.random.default_rng(0)
    runs = [
        Observation(b, 4000 * (1 + b / 40) * math.exp(sd * draws.normal()), b not in without, seed)
        for b in BATCHES
        for seed in range(2)
    ]
    return pooled_curve(fit(runs, BATCHES), runs, own=own, workload="proxy")


def planned(own: int | None, **arguments: object) -> Plan:
    return plan(board(), efficiency(own, **arguments), cap=CAP)  # type: ignore[arg-type]


def test_a_surely_faster_batch_size_is_chosen_and_the_plan_says_what_that_gains() -> None:
    free, other = planned(None), planned(128)
    assert other.point == free.point
    assert other.own_batch_size == 128
    assert other.rival_batch_size == free.batch_size
    assert other.p_faster is not None
    assert other.p_faster > 0.9
    assert other.expected_gain is not None
    own = planned(128, without=BATCHES[:-1])
    assert own.batch_size == 128
    assert own.predicted_s is not None
    assert free.predicted_s is not None
    assert other.expected_gain == pytest.approx(1 - free.predicted_s / own.predicted_s, abs=0.1)
    assert f"faster than yours, 128, with a probability of {plan_text._probability(other.p_faster)}" in summary(other)


def test_a_batch_size_that_may_be_slower_is_not_chosen() -> None:
    best = planned(None, sd=0.1).batch_size
    neighbor = BATCHES[BATCHES.index(best) + 1]
    kept = planned(neighbor, sd=0.1)
    assert kept.p_faster is not None
    assert kept.p_faster < 0.9
    assert "Your batch size is kept" in summary(kept)
    assert kept.batch_size == neighbor


def test_the_best_batch_size_may_be_the_own_one() -> None:
    best = planned(None).batch_size
    same = planned(best)
    assert same.batch_size == same.own_batch_size == same.rival_batch_size == best
    assert same.p_faster is same.expected_gain is None
    assert "is yours; no other one is expected to be faster" in summary(same)


def test_a_plan_without_an_own_batch_size_says_so() -> None:
    assert "No batch size of yours to compare with" in summary(planned(None))
    assert "No batch size of yours" not in summary(plan(board(), efficiency(None), cap=CAP, batch_size=8))


def test_an_own_batch_size_that_never_reached_the_target_cannot_be_compared() -> None:
    lost = planned(128, without=(128,))
    assert lost.rival_batch_size is None
    assert lost.own_batch_size == 128
    assert lost.batch_size == planned(None, without=(128,)).batch_size
    assert any("your batch size 128 cannot be compared" in note for note in lost.notes)


def test_of_a_pick_with_the_own_batch_size_nothing_is_said() -> None:
    best = planned(None).batch_size
    same = plan(board(), efficiency(best).model_copy(update={"observations": ()}), cap=CAP)
    assert same.batch_size == same.own_batch_size == best
    assert not any("cannot be compared" in note for note in same.notes)


def test_the_rule_of_the_comparison_is_that_of_the_plan() -> None:
    best = planned(None, sd=0.1).batch_size
    neighbor = BATCHES[BATCHES.index(best) + 1]
    curve = efficiency(neighbor, sd=0.1)
    candidate = pick("wattune", board(), curve, CAP.at_sensor(None, 0.0))
    assert candidate is not None
    assert candidate.point == plan(board(), curve, cap=CAP).point
    assert candidate.point.batch_size == neighbor
    fastest = pick("fastest", board(), curve, CAP.at_sensor(None, 0.0))
    assert fastest is not None
    assert fastest.point.batch_size == best


def test_runs_that_were_left_out_are_a_note() -> None:
    curve = efficiency(None)
    best = planned(None).batch_size
    runs = tuple(
        run.model_copy(update={"left_out": run.batch_size == best and run.seed == 1}) for run in curve.observations
    )
    notes = plan(board(), curve.model_copy(update={"observations": runs}), cap=CAP).notes
    assert any("two clumps" in note for note in notes)


def frugal_at(own: int) -> ProfileTable:
    """A board that takes a hundredth of the power at one batch size, which is then the one of least energy."""
    table = board()
    cells = tuple(
        cell.model_copy(update={"power_mean_w": (cell.power_mean_w or 0) / 100}) if cell.batch_size == own else cell
        for cell in table.cells
    )
    return table.model_copy(update={"cells": cells})


def test_an_own_batch_size_is_not_kept_where_only_others_meet_the_deadline() -> None:
    def deadline(seconds: float) -> Plan:
        return plan(frugal_at(128), efficiency(128), cap=CAP, goal=Goal("energy", deadline_s=seconds))

    fastest_s = plan(board(), efficiency(None), cap=CAP).predicted_s
    own_s = plan(board(), efficiency(None), cap=CAP, batch_size=128).predicted_s
    assert fastest_s is not None
    assert own_s is not None
    assert fastest_s < own_s
    between = deadline(math.sqrt(fastest_s * own_s))
    assert between.batch_size != 128
    assert any("your batch size 128 cannot be compared" in note for note in between.notes)
    assert deadline(1.001 * own_s).batch_size == 128


@pytest.mark.parametrize("is_sure", [True, False])
def test_a_slowdown_is_relative_to_the_own_batch_size_only_while_that_may_be_the_fastest(is_sure: bool) -> None:
    sd = 0.02 if is_sure else 0.1
    best = planned(None, sd=sd)
    own = 128 if is_sure else BATCHES[BATCHES.index(best.batch_size) + 1]
    curve = efficiency(own, sd=sd)
    own_s = plan(board(), curve, cap=CAP, batch_size=own).predicted_s
    assert own_s is not None
    assert best.predicted_s is not None
    slowdown = 0.5 * (own_s / best.predicted_s - 1)
    assert slowdown > 0
    found = plan(frugal_at(own), curve, cap=CAP, goal=Goal("energy", max_slowdown=slowdown))
    assert (found.batch_size == own) == (not is_sure)
