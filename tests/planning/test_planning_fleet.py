"""Rounds of federated training: split and pace against brute force on small fleets."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.planning_tables import cell

from wattune.cap import PowerCap
from wattune.errors import InputError
from wattune.planning.fleet import FleetClient, LocalPoint, plan_round, points_under
from wattune.point import OperatingPoint
from wattune.records import ProfileTable

PEAK = PowerCap(window="peak")


def local(index: int, step_s: float, power_w: float) -> LocalPoint:
    return LocalPoint(OperatingPoint.of(16, clock_mhz=float(index)), step_s, power_w)


def client(name: str, *figures: tuple[float, float], **more: float) -> FleetClient:
    return FleetClient(name, tuple(local(i, *pair) for i, pair in enumerate(figures)), **more)


FIGURES = st.tuples(st.sampled_from([0.1, 0.25, 0.4, 1.0, 3.0]), st.sampled_from([2.0, 3.5, 5.0, 9.0]))
POINTS = st.lists(FIGURES, min_size=1, max_size=3)
CLIENTS = st.lists(POINTS, min_size=1, max_size=3).map(
    lambda fleet: [client(str(i), *points) for i, points in enumerate(fleet)]
)


def every_split(count: int, total: int):
    return (one for one in itertools.product(range(1, total + 1), repeat=count) if sum(one) == total)


@given(CLIENTS, st.integers(1, 3))
def test_no_split_of_the_steps_ends_sooner(fleet, steps):
    result = plan_round(fleet, steps=steps)
    fastest = [min(one.step_s for one in member.points) for member in fleet]
    total = steps * len(fleet)
    assert sum(part.steps for part in result.parts) == total
    best_s = min(max(n * s for n, s in zip(one, fastest, strict=True)) for one in every_split(len(fleet), total))
    assert result.seconds == pytest.approx(best_s)
    assert max(part.seconds for part in result.parts) <= result.seconds * (1 + 1e-9)


@given(CLIENTS, st.integers(1, 3), st.floats(1.0, 4.0))
def test_no_choice_of_points_meets_the_deadline_with_less_energy(fleet, steps, slack):
    soonest_s = plan_round(fleet, steps=steps, split="even").seconds
    result = plan_round(fleet, steps=steps, split="even", deadline_s=slack * soonest_s)
    least_j = sum(
        min(
            one.step_s * one.power_w * steps
            for one in member.points
            if steps * one.step_s <= slack * soonest_s * (1 + 1e-12)
        )
        for member in fleet
    )
    assert result.energy_j == pytest.approx(least_j)
    assert {part.steps for part in result.parts} == {steps}


@given(CLIENTS, st.integers(1, 3), st.floats(0.0, 1.0))
def test_a_budget_makes_the_round_as_long_as_it_has_to_be(fleet, steps, share):
    soonest = plan_round(fleet, steps=steps, split="even")
    least_j = plan_round(fleet, steps=steps, split="even", deadline_s=1e6).energy_j
    budget_j = least_j + share * (soonest.energy_j - least_j) + 1e-9
    result = plan_round(fleet, steps=steps, split="even", energy_j=budget_j)
    ways = itertools.product(*(member.points for member in fleet))
    best_s = min(
        max(steps * one.step_s for one in way)
        for way in ways
        if math.fsum(steps * one.step_s * one.power_w for one in way) <= budget_j
    )
    assert result.energy_j <= budget_j
    assert result.seconds == pytest.approx(max(best_s, soonest.seconds))


@given(CLIENTS, st.integers(1, 3), st.floats(0.3, 40.0))
def test_no_client_uses_more_energy_than_it_has(fleet, steps, energy_j):
    limited = [FleetClient(member.name, member.points, energy_j=energy_j) for member in fleet]
    if all(min(one.step_s * one.power_w for one in member.points) > energy_j for member in fleet):
        with pytest.raises(InputError, match="no energy left for a step"):
            plan_round(limited, steps=steps)
        return
    result = plan_round(limited, steps=steps)
    assert all(part.energy_j <= energy_j * (1 + 1e-9) for part in result.parts)
    assert {part.name for part in result.parts} | set(result.left_out) == {member.name for member in fleet}


def test_power_at_rest_is_not_charged_to_training():
    member = client("board", (1.0, 10.0), (1.5, 7.0))
    assert plan_round([member], steps=1, deadline_s=2).parts[0].point.knobs.first == 0.0
    resting = FleetClient("board", member.points, rest_w=6.0)
    assert plan_round([resting], steps=1, deadline_s=2).parts[0].point.knobs.first == 1.0


def test_a_client_without_a_point_or_energy_takes_no_part_and_says_so():
    fleet = [client("capped"), client("empty", (1.0, 5.0), energy_j=4.0), client("able", (1.0, 5.0))]
    result = plan_round(fleet, steps=3)
    assert [part.name for part in result.parts] == ["able"]
    assert result.left_out == {
        "capped": "no measured point stays under its cap",
        "empty": "no energy left for a step",
    }
    with pytest.raises(InputError, match=r"no client can take part.*capped: no measured point stays under its cap"):
        plan_round(fleet[:2], steps=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"deadline_s": 2.9}, "deadline_s: 2.9; allowed: 3 s or more"),
        ({"energy_j": 1.0}, "energy_j: 1.0; allowed: 12 J or more a round"),
        ({"deadline_s": 9.0, "energy_j": 9.0}, "allowed: one of them"),
        ({"split": "random"}, "split: random; allowed: speed, even"),
    ],
)
def test_bounds_that_cannot_be_met_say_what_can(arguments, message):
    with pytest.raises(InputError, match=message):
        plan_round([client("board", (1.0, 5.0), (2.0, 2.0))], **{"steps": 3, **arguments})


def test_points_under_a_cap_are_those_of_the_recipes_batch_size():
    cells = (cell(8, 100.0, 2.0, 4.0), cell(8, 200.0, 1.0, 6.0), cell(16, 100.0, 3.0, 5.0))
    table = ProfileTable(device="a board", workload="task", cells=cells)
    points = points_under(table, PowerCap(5.0, window="peak"), 8)
    assert [(one.point.batch_size, one.step_s) for one in points] == [(8, 2.0)]
    assert points_under(table, PowerCap(1.0, window="peak"), 8) == ()
    with pytest.raises(InputError, match="the batch size is missing; allowed: 8, 16"):
        points_under(table, PEAK)
    with pytest.raises(InputError, match=r"the profile has no batch size: 4; allowed: 8, 16; did you mean 8\?"):
        points_under(table, PEAK, 4)
