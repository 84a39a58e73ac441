"""Other work on the board goes first: training waits before a step, and the wait is no part of any step."""

from __future__ import annotations

import pytest
from tests.support import training_runs as made

from wattune.errors import InputError
from wattune.training import train

PLAN = made.plan(batch_size=32, micro_batch_size=8)


class Busy:
    """Other work that wants the board in the first ``busy_s`` of every ``period_s`` seconds."""

    def __init__(self, device, busy_s=0.3, period_s=1.0):
        self.device, self.busy_s, self.period_s = device, busy_s, period_s

    def __call__(self):
        return self.device.now_s() % self.period_s < self.busy_s


@pytest.fixture(scope="module")
def workload():
    return made.workload(target=None)


@pytest.fixture(scope="module")
def alone(workload):
    return train(made.nano(), workload, PLAN)


def test_the_wait_is_no_part_of_a_step(workload, alone):
    device = made.nano()
    record = train(device, workload, PLAN, yield_to=Busy(device))
    assert made.trajectory(record) == made.trajectory(alone)
    assert record.paused_s > 0.1 * record.time_s
    assert record.exact.time_s == pytest.approx(alone.exact.time_s + record.paused_s, rel=0.01)
    assert alone.paused_s is None


def test_a_resumed_run_counts_all_waits(workload, alone, tmp_path):
    class Stop(Exception):
        pass

    def stop(evaluation, readings):
        if evaluation.samples >= 1024:
            raise Stop

    device, path = made.nano(), tmp_path / "checkpoint"
    with pytest.raises(Stop):
        train(device, workload, PLAN, yield_to=Busy(device), checkpoint=path, on_evaluation=stop)
    device = made.nano()
    record = train(device, workload, PLAN, checkpoint=path, resume=True, yield_to=lambda: False)
    assert made.trajectory(record) == made.trajectory(alone)
    assert 0.1 < record.paused_s < 0.5 * record.time_s


def test_what_is_no_function_is_refused(workload):
    with pytest.raises(InputError, match="yield_to: 8002; allowed: a function"):
        train(made.nano(), workload, PLAN, yield_to=8002)
