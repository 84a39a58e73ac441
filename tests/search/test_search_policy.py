"""The search, on boards that are formulas: it is told what they take and draw, and must find the best point."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field

import pytest

from wattune.goal import Goal
from wattune.point import BatchShape, Knobs, OperatingPoint
from wattune.profiling.guided import FREE, STRICT
from wattune.search.observation import Stretch
from wattune.search.policy import SESSION_BY_CURVE
from wattune.search.search import Search

ROWS = tuple(BatchShape(b, m) for b in (16, 32, 64, 128) for m in (8, 16, 32, 64, 128) if m <= b)
TOP_MHZ = 1000.0
CLOCKS = tuple(Knobs(clock_mhz=mhz) for mhz in (100, 200, 300, 400, 500, 600, 700, 800, 900, TOP_MHZ))
START = BatchShape(64, 64)
FLAT = {16: (1.0, 0.02), 32: (1.0, 0.02), 64: (1.0, 0.0), 128: (1.0, 0.02)}


@dataclass
class Board:
    """Time and power of a made-up board; the sensor's noise is cut off at three standard deviations."""

    pass_s: float = 0.02
    sample_s: float = 0.0005
    optimizer_s: float = 0.01
    rest_w: float = 3.0
    busy_w: float = 4.0
    noise_w: float = 0.03
    is_windowed: bool = False
    draw: random.Random = field(default_factory=lambda: random.Random(7))

    def step_s(self, point: OperatingPoint) -> float:
        slower = TOP_MHZ / point.knobs.get("clock_mhz", TOP_MHZ)
        passes = point.batch_size / point.micro_batch_size
        return self.pass_s * passes + self.optimizer_s + self.sample_s * point.batch_size * slower

    def power_w(self, point: OperatingPoint) -> float:
        share = point.knobs.get("clock_mhz", TOP_MHZ) / TOP_MHZ
        idle_s = self.pass_s * point.batch_size / point.micro_batch_size + self.optimizer_s
        busy = 1 - idle_s / self.step_s(point)
        return self.rest_w + self.busy_w * share * (0.3 + 0.7 * busy) * (0.6 + 0.4 * max(0.6, share) ** 2)

    def probe(self, point: OperatingPoint, seconds: float = 2.0) -> tuple[float, float, float, float]:
        count = max(2, int(seconds / 0.4))
        noise = [max(-3.0, min(3.0, self.draw.gauss(0, 1))) * self.noise_w for _ in range(count)]
        power_w = self.power_w(point)
        mean_w = power_w + sum(noise) / count
        return self.step_s(point), mean_w, mean_w if self.is_windowed else power_w + max(noise), seconds

    def search(self, cap_w: float | None, rows: tuple[BatchShape, ...] = ROWS, **options: object) -> Search:
        known = {"noise_w": self.noise_w, "window_s": 0.4, "period_s": 0.4, "settle_s": 0.8, **options}
        if self.is_windowed:
            known["cap_window_s"] = 2.0
        search = Search(rows, CLOCKS, cap_w=cap_w, start=START, **known)
        search.relative(FLAT)
        return search

    def cost(self, point: OperatingPoint) -> float:
        return self.step_s(point) / point.batch_size * FLAT[point.batch_size][0]

    def ideal(self, cap_w: float) -> OperatingPoint:
        points = [OperatingPoint(row, clock) for row in ROWS for clock in CLOCKS]
        allowed_w = cap_w - (1 if self.is_windowed else 3) * self.noise_w
        return min((p for p in points if self.power_w(p) <= allowed_w), key=self.cost)


def finish(search: Search, board: Board, cap_w: float = math.inf, most: int = 80) -> list[OperatingPoint]:
    """Probe until the search has enough; the points probed."""
    points = []
    while (point := search.next()) is not None:
        points.append(point)
        assert len(points) < most
        found = board.probe(point)
        if found[2] > cap_w:
            search.above(point, found[2])
        else:
            search.tell(point, Stretch(*found))
    return points


@pytest.mark.parametrize("cap_w", [5.2, 6.0, 6.5, 8.0, 12.0])
def test_the_second_probe_stays_under_the_cap_even_if_all_power_rises_with_the_clock(cap_w: float) -> None:
    clocks = [Knobs(clock_mhz=mhz) for mhz in range(100, 1025, 25)]
    search = Search([START], clocks, cap_w=cap_w, start=START, noise_w=0.03, cap_window_s=2.0)
    search.tell(OperatingPoint(START, clocks[0]), Stretch(0.4, 5.0, 5.02, 3.0))
    second = search.next()
    assert second is not None
    assert second.knobs["clock_mhz"] <= max(125, 100 * cap_w / 5.0)


def test_settings_near_each_other_bound_a_probe_as_one_does() -> None:
    """Figures of a simulated board whose probe at 242.25 MHz, forecast below the cap, drew 6.36 W."""
    clocks = [Knobs(clock_mhz=114.75 + 25.5 * step) for step in range(20)]
    sensor = {"noise_w": 0.03, "resolution_w": 0.0405, "window_s": 0.422, "period_s": 0.422, "settle_s": 0.849}
    search = Search([START], clocks, cap_w=6.3016, start=START, cap_window_s=1.0, **sensor)
    for clock, step_s, mean_w, peak_w, seconds in [(0, 0.3876, 5.0544, 5.0706, 1.55), (1, 0.318, 5.292, 5.2893, 1.27)]:
        search.tell(OperatingPoint(START, clocks[clock]), Stretch(step_s, mean_w, peak_w, seconds))
    third = search.next()
    assert third is not None
    assert third.knobs["clock_mhz"] <= 140.25 * 6.3016 / 5.292


@pytest.mark.parametrize("is_windowed", [True, False], ids=["window", "peak"])
@pytest.mark.parametrize("cap_w", [4.0, 4.8, 5.6, 6.5])
@pytest.mark.parametrize("seed", range(4))
def test_finds_a_point_near_the_best_under_the_cap(cap_w: float, seed: int, is_windowed: bool) -> None:
    draw = random.Random(seed)
    board = Board(
        pass_s=draw.choice((0.002, 0.02)),
        sample_s=draw.choice((0.0002, 0.002)),
        rest_w=draw.uniform(2.8, 3.2),
        busy_w=draw.uniform(3, 6),
        is_windowed=is_windowed,
        draw=draw,
    )
    search = board.search(cap_w)
    points = finish(search, board, cap_w)
    best = search.best()
    assert best is not None
    assert board.power_w(best) + (0 if is_windowed else 3 * board.noise_w) <= cap_w
    # The voltage bends where nobody has looked: a probe may just miss it, and is the only one on that way up.
    assert sum(board.power_w(point) > cap_w for point in points) <= 1
    assert max(map(board.power_w, points)) <= 1.01 * cap_w
    # One setting less than the best is what a point so near the cap may cost.
    ideal = board.ideal(cap_w)
    below = CLOCKS[max(0, CLOCKS.index(ideal.knobs) - 1)]
    assert board.cost(best) <= 1.02 * board.cost(OperatingPoint(ideal.shape, below))
    assert len(points) <= 50


@pytest.mark.parametrize("goal", [Goal("energy"), Goal("edp"), Goal("energy", max_slowdown=0.1)], ids=str)
@pytest.mark.parametrize("cap_w", [None, 5.6])
@pytest.mark.parametrize("seed", range(3))
def test_finds_a_point_near_the_best_for_the_goal(cap_w: float | None, seed: int, goal: Goal) -> None:
    draw = random.Random(seed)
    board = Board(rest_w=draw.uniform(0.5, 3.0), busy_w=draw.uniform(4, 9), is_windowed=True, draw=draw)
    rows = (START, BatchShape(128, 128))
    search = board.search(cap_w, rows, goal=goal)
    finish(search, board, math.inf if cap_w is None else cap_w)
    best = search.best()
    assert best is not None

    def value(point: OperatingPoint) -> float:
        return board.cost(point) * float(goal.price(board.power_w(point), None))

    limit_w = math.inf if cap_w is None else 0.98 * cap_w  # a setting less is what a point so near the cap may cost
    allowed = [
        point for row in rows for knobs in CLOCKS if board.power_w(point := OperatingPoint(row, knobs)) <= limit_w
    ]
    fastest = min(map(board.cost, allowed))
    if goal.max_slowdown is not None:
        allowed = [point for point in allowed if board.cost(point) <= (1 + goal.max_slowdown) * fastest]
        assert board.cost(best) <= 1.03 * (1 + goal.max_slowdown) * fastest
    assert value(best) <= 1.05 * min(map(value, allowed))


def test_looks_below_the_highest_setting_of_a_board_that_rests_near_0_w() -> None:
    board = Board(rest_w=0.02, busy_w=9.0)
    search = board.search(None, (START,), goal=Goal("energy"), manner=FREE, rest_w=0.02)
    finish(search, board)
    best = search.best()
    assert best is not None
    least_j = min(board.cost(point) * board.power_w(point) for point in (OperatingPoint(START, mhz) for mhz in CLOCKS))
    assert board.cost(best) * board.power_w(best) <= 1.1 * least_j


def test_begins_at_the_highest_setting_without_a_cap() -> None:
    board = Board()
    search = board.search(None)
    assert search.next() == OperatingPoint(START, CLOCKS[-1])
    points = finish(search, board)
    best = search.best()
    assert best is not None
    assert board.cost(best) <= 1.01 * min(board.cost(OperatingPoint(row, CLOCKS[-1])) for row in ROWS)
    assert len(points) < len(ROWS) + 5


def test_chooses_among_rows_where_there_is_no_clock() -> None:
    board = Board()
    search = Search(ROWS, (Knobs(),), cap_w=6.9, start=START, noise_w=board.noise_w)
    search.relative(FLAT)
    assert search.next() == OperatingPoint(START, Knobs())
    finish(search, board, 6.9)
    best = search.best()
    assert best is not None
    assert best.knobs == Knobs()
    assert board.power_w(best) <= 6.9


def test_steps_up_in_clock_are_bounded() -> None:
    board = Board()
    search = board.search(100.0)  # far from any power: nothing but the bound holds it back
    highest: dict[BatchShape, float] = {}
    for point in finish(search, board):
        clock_mhz = point.knobs["clock_mhz"]
        others = max(highest.values(), default=CLOCKS[0]["clock_mhz"])
        assert clock_mhz <= max(others, 2.5 * highest.get(point.shape, CLOCKS[0]["clock_mhz"]))
        highest[point.shape] = max(highest.get(point.shape, 0.0), clock_mhz)


def test_a_row_far_larger_than_any_measured_one_is_entered_at_the_lowest_setting() -> None:
    board = Board()
    search = Search(ROWS, CLOCKS, cap_w=100.0, start=BatchShape(16, 16), noise_w=board.noise_w)
    search.relative({16: (1.0, 0.0), 32: (0.8, 0.02), 64: (0.6, 0.02), 128: (0.5, 0.02)})
    largest, far = 16, []
    for point in finish(search, board):
        if point.batch_size > 2 * largest:
            far.append(point)
        largest = max(largest, point.batch_size)
    assert far
    assert {point.knobs for point in far} == {CLOCKS[0]}


def test_what_was_above_the_cap_is_not_used_again() -> None:
    board = Board()
    search = board.search(5.0)
    for clock in CLOCKS[:5]:
        search.tell(OperatingPoint(START, clock), Stretch(*board.probe(OperatingPoint(START, clock))))
    search.above(OperatingPoint(START, CLOCKS[3]), 5.1)
    best = search.best()
    assert best is not None
    assert best.knobs < CLOCKS[3]
    for _ in range(20):
        point = search.next()
        if point is None:
            break
        assert point.shape != START or point.knobs < CLOCKS[3]
        search.tell(point, Stretch(*board.probe(point)))


def test_a_cap_that_the_lowest_setting_does_not_keep_leaves_no_point() -> None:
    search = Board().search(2.0)
    while (point := search.next()) is not None:
        search.above(point, 3.3)
    assert search.best() is None
    assert search.reason == "the cap is not kept: 3.3 W at batch size 64 at 100 MHz is the least"


def test_a_row_that_does_not_fit_is_left_out_with_all_larger_ones() -> None:
    board = Board()
    search = board.search(6.0)
    search.unfit(BatchShape(64, 32))
    first = search.next()
    assert first is not None
    assert first.shape != START
    points = finish(search, board, 6.0)
    assert not [p for p in points if p.micro_batch_size >= 32 and p.batch_size >= 64]


def test_a_slower_row_is_chosen_where_it_needs_fewer_samples() -> None:
    board = Board(pass_s=0.001)
    fewer = {16: (0.3, 0.02), 32: (0.6, 0.02), 64: (1.0, 0.0), 128: (1.8, 0.02)}
    search = board.search(6.0)
    search.relative(fewer)
    points = finish(search, board, 6.0)
    best = search.best()
    assert best is not None
    assert best.batch_size == 16
    # No plausible number of samples rescues the largest.
    assert sum(point.batch_size == 128 for point in points) <= 1


def test_looks_again_when_it_learns_that_another_batch_needs_fewer_samples() -> None:
    board = Board()
    search = board.search(5.5)
    search.relative({64: (1.0, 0.0)})
    points = finish(search, board, 5.5)
    assert {point.batch_size for point in points} == {64}
    search.relative({**FLAT, 16: (0.2, 0.02)})
    assert {point.batch_size for point in finish(search, board, 5.5)} >= {16}
    best = search.best()
    assert best is not None
    assert best.batch_size == 16


def test_relative_samples_may_be_relative_to_any_batch_size() -> None:
    board = Board()
    one, other = board.search(5.5), board.search(5.5)
    other.relative({size: (3 * mean, sd) for size, (mean, sd) in FLAT.items()})
    assert finish(one, Board(), 5.5) == finish(other, Board(), 5.5)


def test_a_short_training_is_not_worth_many_probes() -> None:
    long, short = (Board().search(5.5, samples_left=left) for left in (1e7, 3000.0))
    assert len(finish(short, Board(), 5.5)) < len(finish(long, Board(), 5.5))
    assert short.samples_left == 0.0


def test_only_probes_that_lead_on_are_brief() -> None:
    board = Board()
    search = board.search(5.5)
    first = search.next()
    assert first is not None
    assert search.is_brief(first)
    search.tell(first, Stretch(*board.probe(first)))
    finish(search, board, 5.5)
    best = search.best()
    assert best is not None
    assert not search.is_brief(best)


def test_noise_that_is_not_known_is_taken_from_the_readings() -> None:
    board = Board(noise_w=0.1)
    search = Search(ROWS, CLOCKS, cap_w=5.5, start=START, window_s=0.4, period_s=0.4)
    search.relative(FLAT)
    points = finish(search, board, 5.5)
    best = search.best()
    assert best is not None
    assert board.power_w(best) + 2.5 * board.noise_w <= 5.5
    assert len(points) > 3


def test_a_margin_is_kept_like_a_lower_cap() -> None:
    one, other = Board().search(5.0), Board().search(5.3, margin_w=0.3)
    assert finish(one, Board(), 5.0) == finish(other, Board(), 5.0)
    assert one.best() == other.best()


def test_resumes_from_its_state_as_if_uninterrupted() -> None:
    board = Board()
    search = board.search(5.5, samples_left=1e6)
    for _ in range(6):
        point = search.next()
        assert point is not None
        search.tell(point, Stretch(*board.probe(point)))
    search.above(OperatingPoint(BatchShape(128, 128), CLOCKS[8]), 5.6)
    search.unfit(BatchShape(128, 64))
    other = board.search(5.5)
    other.load_state_dict(json.loads(json.dumps(search.state_dict())))
    assert other.best() == search.best()
    for _ in range(4):
        point = search.next()
        assert other.next() == point
        if point is None:
            break
        found = board.probe(point)
        search.tell(point, Stretch(*found))
        other.tell(point, Stretch(*found))
    assert other.state_dict() == search.state_dict()


def test_a_state_of_other_rows_is_passed_over() -> None:
    board = Board()
    search = board.search(5.5)
    finish(search, board, 5.5)
    fewer = Search(ROWS[:3], CLOCKS[:4], cap_w=5.5, start=BatchShape(16, 16))
    fewer.load_state_dict(search.state_dict())
    point = fewer.next()
    assert point is None or (point.shape in ROWS[:3] and point.knobs in CLOCKS[:4])


# ------------------------------------------------------------------------------------------------------- of a profile

SQUARES = tuple(BatchShape(b, b) for b in (16, 32, 64, 128))


@pytest.mark.parametrize("cap_w", [4.0, 4.8, 5.6])
@pytest.mark.parametrize("seed", range(3))
def test_a_profile_takes_few_probes_and_ends_near_the_best(cap_w: float, seed: int) -> None:
    board = Board(draw=random.Random(seed))
    search = board.search(cap_w, SQUARES, manner=FREE)
    points = finish(search, board, cap_w, most=25)
    best = search.best()
    assert best in points
    ideal = min(
        (p for row in SQUARES for c in CLOCKS if board.power_w(p := OperatingPoint(row, c)) <= 0.97 * cap_w),
        key=board.cost,
    )
    assert board.cost(best) <= 1.06 * board.cost(ideal)
    assert board.power_w(best) <= cap_w
    assert 0 <= search.risk(best) < 0.01 < search.risk(OperatingPoint(BatchShape(128, 128), CLOCKS[-1]))
    assert search.reason


@pytest.mark.parametrize("seed", range(5))
def test_a_strict_profile_probes_nothing_above_the_cap(seed: int) -> None:
    draw = random.Random(seed)
    board = Board(rest_w=draw.uniform(1, 5), busy_w=draw.uniform(2, 8), draw=draw)
    cap_w = board.rest_w + 0.2 + draw.uniform(0.3, 0.8) * board.busy_w
    search = board.search(cap_w, SQUARES, manner=STRICT)
    points = finish(search, board, cap_w, most=40)
    assert all(board.power_w(point) <= cap_w for point in points)


def test_unknown_samples_keep_more_rows_in_question() -> None:
    probed = []
    for sd in (0.0, 0.5):
        board = Board()
        search = board.search(5.0, SQUARES, manner=FREE)
        search.relative({row.batch: (2.0 ** (k / 2), sd if k else 0.0) for k, row in enumerate(SQUARES)})
        probed.append(finish(search, board, 5.0, most=40))
    assert BatchShape(128, 128) not in {point.shape for point in probed[0]}  # it needs 2.8 times the samples
    assert BatchShape(128, 128) in {point.shape for point in probed[1]}


@pytest.mark.parametrize(("sd", "chosen"), [(0.02, 128), (0.5, 64)])
def test_the_users_batch_size_is_kept_unless_another_is_surely_faster(sd: float, chosen: int) -> None:
    board = Board(sample_s=1e-5)  # nearly all of a step is its overhead, so twice the batch takes half the time
    search = board.search(None, manner=SESSION_BY_CURVE)
    search.relative({16: (1.0, sd), 32: (1.0, sd), 64: (1.0, 0.0), 128: (1.5, sd)})
    finish(search, board)
    best = search.best()
    assert best is not None
    assert best.batch_size == chosen
