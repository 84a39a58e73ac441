"""BoFL's pace control in the benchmark of fleets, against all ways to spread the steps."""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest
from benchmarks.federated import mixed

from wattune.planning.fleet import FleetClient, LocalPoint
from wattune.point import BatchShape, Knobs, OperatingPoint

STEPS = 6


def client(*figures: tuple[float, float]) -> FleetClient:
    """A client with points of these seconds and joules a step."""
    points = [
        LocalPoint(OperatingPoint(BatchShape.of(8), Knobs(clock_mhz=1000 - index)), step_s, step_j / step_s)
        for index, (step_s, step_j) in enumerate(figures)
    ]
    return FleetClient("one", tuple(points), fixed_s=0.5)


@pytest.mark.parametrize("deadline_s", [6.5, 7.4, 8.5, 9.7, 12.5, 40.0])
@pytest.mark.parametrize(
    "figures", [((1.0, 9.0), (1.4, 6.0), (2.0, 4.0)), ((1.0, 9.0), (1.4, 8.5), (2.0, 4.0), (3.0, 5.0))]
)
def test_steps_are_spread_over_the_points_that_need_least(figures, deadline_s):
    one = client(*figures)
    part = mixed(one, STEPS, deadline_s)
    in_time = [
        sum(point.step_s * point.power_w for point in way)
        for way in combinations_with_replacement(one.points, STEPS)
        if 0.5 + sum(point.step_s for point in way) <= deadline_s + 1e-9 and len(set(way)) <= 2
    ]
    assert part.energy_j == pytest.approx(min(in_time))
    assert part.seconds <= deadline_s + 1e-9
    assert part.steps == STEPS
