from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from wattune.point import Knobs, OperatingPoint
from wattune.profiling.strategies import full, shapes, staircase
from wattune.records import AbortedProbe, ProfileCell

CAP_W = 5.0


class Board:
    """Powers by (batch size, clock); counts the probes. A power of None does not fit in memory."""

    def __init__(self, powers: dict[tuple[int, float], float | None]):
        self.powers = powers
        self.measured: list[tuple[int, float]] = []
        self.stopped: list[tuple[int, float]] = []
        self.refused: list[tuple[int, float]] = []

    def measure(self, point: OperatingPoint) -> ProfileCell | AbortedProbe:
        clock = point.knobs["clock_mhz"]
        place = (point.batch_size, clock)
        assert place not in [*self.measured, *self.stopped, *self.refused], "each cell is probed once"
        power_w = self.powers[place]
        if power_w is None:
            self.refused.append(place)
            return ProfileCell(**point.fields(), out_of_memory=True)
        if power_w > CAP_W:
            self.stopped.append(place)
            return AbortedProbe(**point.fields(), cap_w=CAP_W, power_w=power_w)
        self.measured.append(place)
        return ProfileCell(**point.fields(), step_s=1, power_mean_w=power_w, power_peak_w=power_w, steps=5)

    def highest(self, places: list[tuple[int, float]]) -> dict[int, float]:
        return {b: max(f for c, f in places if c == b) for b in {b for b, _ in places}}


def along(clocks: Sequence[float]) -> list[list[Knobs]]:
    """The one climb of a device with these clocks."""
    return [[Knobs(clock_mhz=clock) for clock in clocks]]


@st.composite
def monotone(draw: st.DrawFn) -> tuple[list[int], list[float], dict[tuple[int, float], float | None]]:
    batches = [4 * 2**i for i in range(draw(st.integers(1, 6)))]
    clocks = [100.0 * (i + 1) for i in range(draw(st.integers(1, 12)))]
    up = st.floats(0, 2, allow_nan=False)
    by_batch = [draw(st.floats(0.5, 6))]
    for _ in batches[1:]:
        by_batch.append(by_batch[-1] + draw(up))
    by_clock = [0.0]
    for _ in clocks[1:]:
        by_clock.append(by_clock[-1] + draw(up))
    return batches, clocks, {(b, f): p + q for b, p in zip(batches, by_batch) for f, q in zip(clocks, by_clock)}  # noqa: B905


@settings(max_examples=3 * settings().max_examples, derandomize=True)
@given(monotone())
def test_the_staircase_finds_what_the_full_grid_finds_in_few_probes(problem):
    batches, clocks, powers = problem
    steps, grid = Board(powers), Board(powers)
    staircase(shapes(batches, ()), along(clocks), steps.measure)
    full(shapes(batches, ()), along(clocks), grid.measure)
    assert len(grid.measured) + len(grid.stopped) == len(batches) * len(clocks)
    assert steps.highest(steps.measured) == grid.highest(grid.measured)
    assert len(steps.measured) <= len(batches) + len(clocks) - 1
    assert all([b for b, _ in steps.stopped].count(b) <= 1 for b in batches)


@settings(max_examples=3 * settings().max_examples, derandomize=True)
@given(st.data())
def test_the_staircase_ends_on_any_readings(data):
    batches, clocks = [4, 8, 16, 32], [1.0, 2.0, 3.0, 4.0, 5.0]
    power = st.one_of(st.none(), st.floats(3, 7, allow_nan=False))
    board = Board({(b, f): data.draw(power) for b in batches for f in clocks})
    staircase(shapes(batches, ()), along(clocks), board.measure)
    assert {b for b, _ in board.measured + board.stopped + board.refused} == set(batches)
    assert all(board.powers[place] <= CAP_W for place in board.measured)


def test_the_staircase_carries_the_clock_upward():
    # Rows from the largest batch: it keeps 5 W up to 200, the next up to 300, and the smallest always.
    powers = {(b, f): f / 100 + extra for b, extra in ((16, 2.5), (8, 1.5), (4, 0.5)) for f in (100, 200, 300, 400)}
    board = Board(powers)
    staircase(shapes([4, 8, 16], ()), along([100, 200, 300, 400]), board.measure)
    assert board.measured == [(16, 100), (16, 200), (8, 200), (8, 300), (4, 300), (4, 400)]
    assert board.stopped == [(16, 300), (8, 400)]


def test_a_first_reading_above_the_cap_goes_down():
    # 8 draws more than 16 did at the clock that it hands on.
    board = Board({(16, 1): 4.0, (16, 2): 4.5, (16, 3): 4.9, (8, 1): 4.2, (8, 2): 4.8, (8, 3): 5.1})
    staircase(shapes([8, 16], ()), along([1, 2, 3]), board.measure)
    assert board.stopped == [(8, 3)]
    assert board.measured[-1] == (8, 2)


def test_what_does_not_fit_is_tried_once_a_batch_size():
    powers = {(b, f): None if b > 8 else 4.0 for b in (4, 8, 16, 32) for f in (1, 2)}
    for strategy in (full, staircase):
        board = Board(powers)
        strategy(shapes([4, 8, 16, 32], ()), along([1, 2]), board.measure)
        assert sorted(board.refused) == [(16, 1), (32, 1)]
        assert (8, 2) in board.measured
        assert (4, 2) in board.measured


def test_shapes_are_every_micro_batch_that_divides():
    assert shapes([4, 6, 8], ()) == [(4, 4), (6, 6), (8, 8)]
    assert shapes([4, 8, 12], (4, 8)) == [(4, 4), (8, 4), (8, 8), (12, 4)]
    assert shapes([2, 8], (4,)) == [(2, 2), (8, 4)]  # smaller than every micro-batch: one pass
