"""The choice of clocks by rounds seen from outside, in virtual time on a replayed board with three clocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from wattune.cap import PowerCap
from wattune.devices.replay import Noise, ReplayDevice
from wattune.point import Knobs
from wattune.power.capped_run import CappedRun
from wattune.records import ProfileCell, ProfileTable, StepWork, provenance
from wattune.script.controller import ScriptController

CLOCKS = {
    "clock_mhz": (200.0, 400.0, 600.0, 800.0, 1000.0),
    "memory_clock_mhz": (400.0, 800.0, 1600.0),
    "cpu_clock_mhz": (400.0, 1000.0, 2000.0),
}
SETTINGS = [Knobs(dict(zip(CLOCKS, values, strict=True))) for values in itertools.product(*CLOCKS.values())]
WORK = StepWork(samples=1, micro_batch_size=1, data_type="fp32", phases=(), peak_memory_bytes=0)


def step_s(knobs: Knobs) -> float:
    """Bound by the GPU, and hardly by the memory and the CPU."""
    gpu, memory, cpu = knobs.values()
    return 0.1 * (1000 / gpu + 0.05 * 1600 / memory + 0.02 * 2000 / cpu)


def power_w(knobs: Knobs) -> float:
    gpu, memory, cpu = knobs.values()
    return 1.0 + 5 * (gpu / 1000) ** 2 + 2.5 * memory / 1600 + 2.5 * cpu / 2000


def board(seed: int = 0) -> ReplayDevice:
    cells = tuple(
        ProfileCell(
            batch_size=1, **knobs, step_s=step_s(knobs), power_mean_w=power_w(knobs), power_peak_w=power_w(knobs)
        )
        for knobs in SETTINGS
    )
    made = provenance("recorded", device="three clocks")
    table = ProfileTable(device="three clocks", workload="rounds", cells=cells, provenance=made)
    return ReplayDevice(table, Noise(0.01, 0.1, seed))


class Run:
    """A program on the board: ``rounds`` of them, with a gap of other work after some."""

    def __init__(self, cap_w: float, **options: Any):
        self.device = board()
        limit = PowerCap(cap_w).at_sensor(None, 0.0)
        self.told: list[str] = []
        self.capped = CappedRun(self.device, limit, SETTINGS[-1], on_reading=self._read)
        self.capped.__enter__()
        self.controller = ScriptController(self.device, self.capped.limiter, say=self.told.append, **options)
        self.capped.start()
        self.made = 0

    def _read(self, time_s: float, watts: float) -> None:
        self.controller.reading(self.device.now_s(), watts)

    def rounds(self, count: int, *, marker: int = 0, pid: int = 1, gap: Callable[[int], float] = lambda _: 0.0) -> None:
        for _ in range(count):
            with self.device.step(WORK):
                pass
            self.made += 1
            self.device.wait(gap(self.made))
            self.controller.look(self.made, self.device.now_s(), marker, pid)
            self.capped.check()

    @property
    def knobs(self) -> Knobs:
        return self.capped.limiter.knobs


def best(cap_w: float) -> float:
    """The shortest round with some room below the cap: readings scatter."""
    return min(step_s(knobs) for knobs in SETTINGS if power_w(knobs) <= 0.97 * cap_w)


@pytest.mark.slow
@pytest.mark.parametrize("cap_w", [5.0, 6.5, 9.0])
def test_it_comes_to_fast_clocks_under_the_cap(cap_w):
    run = Run(cap_w)
    run.rounds(1500)
    choice = run.controller.outcome()
    assert choice.chosen == dict(run.knobs)
    assert power_w(run.knobs) <= cap_w
    assert step_s(run.knobs) <= 1.1 * best(cap_w)
    assert choice.step_s == pytest.approx(step_s(run.knobs), rel=0.01)
    assert choice.first_s > choice.step_s, "the first clock alone pays for the others"
    assert choice.gpu_alone_s is None or choice.gpu_alone_s > choice.step_s
    assert choice.saved_s > 0
    assert any(line.startswith("chosen: ") for line in choice.in_words())


def test_where_the_cap_does_not_bind_nothing_is_tried():
    run = Run(20.0)
    run.rounds(400)
    choice = run.controller.outcome()
    assert (choice.chosen, choice.probes, choice.search_s) == (dict(SETTINGS[-1]), 1, pytest.approx(0.0, abs=0.1))
    assert choice.reason == "the cap does not bind"


@pytest.mark.slow
def test_gaps_change_nothing():
    plain, gaps = Run(6.5), Run(6.5)
    plain.rounds(1500)
    gaps.rounds(1500, gap=lambda number: 5.0 if number % 97 == 0 else 0.0)
    assert step_s(gaps.knobs) <= 1.1 * best(6.5)
    assert gaps.controller.outcome().step_s == pytest.approx(step_s(gaps.knobs), rel=0.01)


@pytest.mark.slow
def test_the_next_run_begins_with_one_measurement():
    first = Run(6.5)
    first.rounds(1500)
    state = first.controller.state_dict()
    again = Run(6.5, remembered=state)
    again.rounds(2)
    assert dict(again.knobs) == state["choice"]["chosen"], "from the first rounds on"
    again.rounds(60)
    choice = again.controller.outcome()
    assert choice.remembered
    assert choice.probes <= 3
    assert choice.chosen == state["choice"]["chosen"]


EMPTY = {"seen": [], "above": [], "closed": [], "relative": [], "samples_left": None, "reason": "", "worth": 0.0}
BAD_SEARCH = {"search": {**EMPTY, "relative": [[float("inf"), 1.0, 1.0]]}, "choice": {}}
BAD_CHOICE = {"search": EMPTY, "choice": {"chosen": {}, "first": {}, "step_s": "fast", "first_s": 1.0}}


@pytest.mark.parametrize(
    "state",
    [{}, {"search": {}, "choice": {}}, {"search": None, "choice": 5}, BAD_SEARCH, BAD_CHOICE],
)
def test_a_memory_that_cannot_be_read_is_none(state):
    run = Run(6.5, remembered=state)
    run.rounds(700)
    assert not run.controller.outcome().remembered
    assert run.controller.outcome().chosen is not None


def test_other_steps_begin_anew_and_another_process_does_not():
    run = Run(6.5)
    run.rounds(900)
    chosen = run.controller.outcome().chosen
    run.rounds(20, pid=2)
    assert run.controller.outcome().remembered
    assert dict(run.knobs) == chosen
    run.rounds(3, marker=1, pid=2)
    assert run.controller.outcome().chosen is None
    assert run.told[-1] == "the program's steps have changed: choosing again"


@pytest.mark.slow
def test_uneven_steps_are_not_compared_and_others_are_chosen_for():
    run = Run(6.5)
    run.rounds(600, gap=lambda number: (0.0, 0.5, 0.9)[number % 3])
    assert run.controller.is_over
    assert "too uneven" in run.controller.outcome().in_words()[0]
    assert run.capped.limiter.top == SETTINGS[-1], "a lighter phase may run faster"
    run.rounds(900, marker=1)
    choice = run.controller.outcome()
    assert "too uneven" not in choice.reason
    assert choice.chosen == dict(run.knobs)
    assert step_s(run.knobs) <= 1.1 * best(6.5)


def test_a_short_run_is_left_alone_and_stays_so_when_its_steps_change():
    run = Run(6.5, expect_s=60.0)
    run.rounds(200)
    said = ["no clock was chosen: a run of 60 s is too short to find faster clocks"]
    assert run.controller.outcome().in_words() == said
    run.rounds(200, marker=1)
    assert run.controller.is_over
    assert run.controller.outcome().in_words() == said
    assert len(run.told) == 1


@pytest.mark.slow
def test_the_search_is_left_alone_while_another_thread_decides():
    is_made = True

    def later(call):
        if is_made:
            call()
        return lambda: is_made

    run = Run(6.5, later=later)
    run.rounds(900)
    is_made = False
    run.rounds(900)  # until the search is asked again
    run.rounds(20, pid=2)
    assert "another process makes steps" not in run.told
    is_made = True
    run.rounds(2, pid=2)
    assert "another process makes steps" in run.told
