"""What lowers the clocks for a while, and is not the steps' own power, excludes no point of a search."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from tests.support.device_examples import make_work

from wattune.cap import SensorLimit
from wattune.devices import SimulatedDevice, builtin_board
from wattune.loop.controller import StepController
from wattune.point import BatchShape
from wattune.power.capped_run import CappedRun
from wattune.search.search import Search

CAP_W = 5.0
ROW = BatchShape(1, 1)
WORK = make_work(8, gflop=20.0)


class Shared(SimulatedDevice):
    """A board whose agent another client may tell a cap, and with other work that may draw power."""

    set_cap_w = None
    total_w = None

    def guarded_w(self, power_w):
        return power_w if self.total_w is None else self.total_w


class Loop:
    """Steps of one row on a board, with a search for its clock."""

    def __init__(self, device, run):
        def search(_):
            return Search([ROW], device.combinations(), cap_w=CAP_W, start=ROW, **device.sensor.searched)

        self.device, self.run, self.points = device, run, []
        self.steps = StepController(
            device, run.limiter, search, ROW, changed=lambda point, why: self.points.append(point)
        )

    def train(self, seconds, *, idle_s=0.0, is_evaluation=False):
        """Train for so long, after a pause; ``is_evaluation``: the pause is one in the middle of the first step."""
        device, steps, end_s = self.device, self.steps, self.device.now_s() + seconds + idle_s
        if idle_s and not is_evaluation:
            self._wait(idle_s)
        while device.now_s() < end_s:
            steps.begin(ROW, 0.0 if is_evaluation else idle_s)
            if is_evaluation:
                steps.begin_evaluation()
                self._wait(idle_s)
            idle_s, is_evaluation, begun_s = 0.0, False, device.now_s()
            with device.step(WORK):
                pass
            steps.end(ROW, device.now_s() - begun_s, device.now_s())
            self.run.check()

    def _wait(self, seconds):
        """Wait while other work draws more than the cap once, and slightly less afterwards."""
        for share in (1.04,) * 5 + (0.995,) * round(10 * seconds - 5):
            self.device.total_w = share * CAP_W
            self.device.wait(0.1)
        self.device.total_w = None


@contextmanager
def searching(seconds):
    """A loop that has searched for so long."""
    device = Shared(builtin_board("jetson-nano"))
    loop = None
    with CappedRun(
        device,
        SensorLimit(CAP_W),
        device.safest,
        on_reading=lambda _, watts: loop.steps.window.reading(device.now_s(), watts),
    ) as run:
        loop = Loop(device, run)
        run.start()
        loop.steps.choose()
        loop.train(seconds)
        yield device, loop


@pytest.mark.parametrize(("before_s", "is_probing"), [(10.0, True), (60.0, False)], ids=["probing", "chosen"])
def test_under_a_lower_cap_that_another_client_sets_nothing_is_judged(before_s, is_probing):
    with searching(before_s) as (device, loop):
        steps, wanted, points = loop.steps, loop.steps.wanted, list(loop.points)
        assert steps.probing == is_probing
        for set_w in (4.1, 4.5):
            device.set_cap_w = set_w
            loop.train(60.0)
            assert device.power_w() <= set_w
            assert (steps.wanted, loop.points) == (wanted, points)
        device.set_cap_w = None
        loop.train(60.0)
        assert loop.points[len(points)] == wanted, "back to it at once"
        assert not steps.probing
        assert not steps.aborted
        assert device.current()["clock_mhz"] == 691.2, "the same as without a set cap"


def test_a_cap_that_is_set_and_ends_within_a_step_ends_no_probe():
    with searching(10.0) as (device, loop):
        steps, wanted = loop.steps, loop.steps.wanted
        assert steps.probing
        steps.begin(ROW)
        device.set_cap_w = 3.0
        device.wait(1.0)
        device.set_cap_w = None
        device.wait(1.0)
        steps.end(ROW, 2.0, device.now_s())
        assert (steps.wanted, steps.aborted) == (wanted, [])


@pytest.mark.parametrize("is_evaluation", [False, True], ids=["other work", "an evaluation within a step"])
def test_a_long_pause_is_no_time_below_a_chosen_point(is_evaluation):
    with searching(60.0) as (device, loop):
        wanted = loop.steps.wanted
        loop.train(10.0, idle_s=40.0, is_evaluation=is_evaluation)
        assert loop.run.limiter.pushed == 1
        assert loop.steps.wanted == wanted
        loop.train(60.0)
        assert device.current() == wanted.knobs
