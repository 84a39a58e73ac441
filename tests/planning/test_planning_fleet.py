"""Rounds of federated training: split and pace against brute force on small fleets."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.planning_tables import cell

from wattune.cap import PowerCap
from wattune.errors import InputError
from wattune.planning.fleet import FleetClient, LocalPoint, plan_round, points_under
from wattune.point import OperatingPoint
from wattune.records import ProfileTable


def local(index: int, step_s: float, power_w: float) -> LocalPoint:
    return LocalPoint(OperatingPoint.of(16, clock_mhz=float(index)), step_s, power_w)


def client(name: str, *figures: tuple[float, float]) -> FleetClient:
    return FleetClient(name, tuple(local(i, *pair) for i, pair in enumerate(figures)))


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


@given(CLIENTS, st.integers(1, 3))
def test_no_choice_of_points_needs_less_energy_for_these_steps_in_this_time(fleet, steps):
    result = plan_round(fleet, steps=steps)
    least_j = sum(
        min(
            one.step_s * one.power_w for one in member.points if part.steps * one.step_s <= result.seconds * (1 + 1e-12)
        )
        * part.steps
        for member, part in zip(fleet, result.parts, strict=True)
    )
    assert result.energy_j == pytest.approx(least_j)


def test_a_client_without_a_point_takes_no_part_and_says_so():
    fleet = [client("capped"), client("able", (1.0, 5.0))]
    result = plan_round(fleet, steps=3)
    assert [part.name for part in result.parts] == ["able"]
    assert result.left_out == {"capped": "no measured point stays under its cap"}
    with pytest.raises(InputError, match=r"no client can take part.*capped: no measured point stays under its cap"):
        plan_round(fleet[:1], steps=3)


def test_points_under_a_cap_are_those_of_the_recipes_batch_size():
    cells = (cell(8, 100.0, 2.0, 4.0), cell(8, 200.0, 1.0, 6.0), cell(16, 100.0, 3.0, 5.0))
    table = ProfileTable(device="a board", workload="task", cells=cells)
    points = points_under(table, PowerCap(5.0, window="peak"), 8)
    assert [(one.point.batch_size, one.step_s) for one in points] == [(8, 2.0)]
    assert points_under(table, PowerCap(1.0, window="peak"), 8) == ()
    with pytest.raises(InputError, match=r"the profile has no batch size: 4; allowed: 8, 16; did you mean 8\?"):
        points_under(table, PowerCap(1.0, window="peak"), 4)
