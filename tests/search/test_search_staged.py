"""A search over several clocks and several batch sizes, on a world whose best point is known."""

from __future__ import annotations

import json
import math

import pytest

from wattune.devices import Knob
from wattune.devices.base import combinations
from wattune.point import BatchShape, OperatingPoint
from wattune.search.observation import Stretch
from wattune.search.search import Search
from wattune.search.staged import StagedSearch

KNOBS = (
    Knob("clock_mhz", (200.0, 400.0, 600.0, 800.0, 1000.0)),
    Knob("memory_clock_mhz", (400.0, 800.0, 1600.0)),
    Knob("cpu_clock_mhz", (500.0, 1000.0, 1500.0, 2000.0)),
)
ROWS = [BatchShape(64, 64), BatchShape(64, 16), BatchShape(128, 128), BatchShape(32, 32)]
CAP_W = 6.0


def world(point: OperatingPoint) -> tuple[float, float]:
    """Seconds of a step, and watts."""
    gpu, memory, cpu = (point.knobs[knob.name] / knob.values[-1] for knob in KNOBS)
    passes = math.ceil(point.batch_size / point.micro_batch_size)
    step_s = point.batch_size * (1e-4 / gpu + 5e-5 / memory) + 2e-3 * passes / cpu
    busy = min(1.0, 0.6 + point.micro_batch_size / 300)
    return step_s, 1.5 + busy * (4.5 * gpu**2.5 + 0.8 * memory) + 1.5 * cpu**2


def new_search(rows, settings):
    search = Search(rows, settings, cap_w=CAP_W, start=ROWS[0], noise_w=0.01, cap_window_s=1.0)
    search.relative(dict.fromkeys((32, 64, 128), (1.0, 0.0)))
    return search


def staged():
    return StagedSearch(new_search, ROWS, combinations(KNOBS), ROWS[0])


def walk(search, most=60):
    """Answer every probe, and return the probed points."""
    probed = []
    while (point := search.next()) is not None and len(probed) < most:
        step_s, power_w = world(point)
        if power_w > CAP_W:
            search.above(point, power_w)
        else:
            search.tell(point, Stretch(step_s, power_w, power_w, 3.0))
        probed.append(point)
    return probed


def cost(point):
    return world(point)[0] / point.batch_size


def test_the_clocks_of_the_own_row_are_chosen_first_and_then_the_row():
    search = staged()
    probed = walk(search)
    rows = [point.shape for point in probed]
    first_other = next(index for index, row in enumerate(rows) if row != ROWS[0])
    assert len({point.knobs["memory_clock_mhz"] for point in probed[:first_other]}) > 1
    others = {tuple(point.knobs.values())[1:] for point in probed[first_other:]}
    assert len(others) == 1
    best = search.best()
    assert world(best)[1] <= CAP_W
    allowed = [OperatingPoint(row, knobs) for row in ROWS for knobs in combinations(KNOBS)]
    least = min(cost(point) for point in allowed if world(point)[1] <= CAP_W)
    assert cost(best) <= 1.06 * least


def test_one_row_has_one_stage():
    search = StagedSearch(new_search, ROWS[:1], combinations(KNOBS), ROWS[0])
    assert {point.shape for point in walk(search)} == {ROWS[0]}


@pytest.mark.parametrize("probes", [3, 1000])
def test_a_saved_search_continues_where_it_was(probes):
    search = staged()
    walk(search, probes)
    state = json.loads(json.dumps(search.state_dict()))
    later = staged()
    later.load_state_dict(state)
    assert later.next() == search.next()
    assert later.best() == search.best()
    assert later.reason == search.reason


def test_a_saved_search_continues_on_a_board_that_has_lost_its_settings():
    search = staged()
    walk(search)
    at = search.state_dict()["rows_at"]
    fewer = [knobs for knobs in combinations(KNOBS) if knobs["memory_clock_mhz"] != at["memory_clock_mhz"]]
    later = StagedSearch(new_search, ROWS, fewer, ROWS[0])
    later.load_state_dict(search.state_dict())
    walk(later)
    assert later.best().knobs in fewer


def test_the_own_recipe_is_the_own_row_at_the_best_of_the_first_clock():
    search = staged()
    assert search.own_recipe() is None  # nothing is known yet
    walk(search)
    own = search.own_recipe()
    others = KNOBS[1:]
    assert own.point.shape == ROWS[0]
    assert all(own.point.knobs[knob.name] == knob.values[-1] for knob in others)
    kept = [p for p in search_points(ROWS[0]) if world(p)[1] <= CAP_W and p.knobs.items() >= top(others).items()]
    fastest_s = min(world(point)[0] for point in kept)
    assert world(own.point)[1] <= CAP_W
    assert own.step_s == pytest.approx(world(own.point)[0], rel=0.05)
    assert own.step_s <= 1.3 * fastest_s  # one setting below it at most: it may not be sure to stay under the cap

    again = staged()
    again.load_state_dict(json.loads(json.dumps(search.state_dict())))
    assert again.own_recipe() == own


def test_without_a_setting_of_the_first_clock_under_the_cap_there_is_no_own_recipe():
    alone = [knobs for knobs in combinations(KNOBS) if knobs.items() >= top(KNOBS[1:]).items()]
    search = Search([ROWS[0]], combinations(KNOBS), cap_w=3.5, start=ROWS[0], noise_w=0.01, cap_window_s=1.0)
    search.tell(OperatingPoint(ROWS[0], min(combinations(KNOBS))), Stretch(1.0, 2.4, 2.4, 3.0))
    for knobs in alone:
        search.above(OperatingPoint(ROWS[0], knobs), 4.0)
    assert search.own_recipe() is None


def search_points(row):
    return [OperatingPoint(row, knobs) for knobs in combinations(KNOBS)]


def top(knobs):
    return {knob.name: knob.values[-1] for knob in knobs}
