"""What fits in memory that training shares with the system: tried in a process that may be killed."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from tests.support.profiles import Computer, greedy, workload

from wattune.errors import OutOfDeviceMemory, WorkloadError
from wattune.point import BatchShape
from wattune.profiling import memory_fit, profile
from wattune.profiling.memory_fit import fit as tried

ROWS = [BatchShape(2, 2), BatchShape(4, 4), BatchShape(8, 8), BatchShape(16, 16)]


class Shared(Computer):
    shares_memory = True


@pytest.mark.slow
@pytest.mark.parametrize(
    "ending", ["killed", pytest.param("NVML_SUCCESS == r INTERNAL ASSERT FAILED", marks=pytest.mark.slow)]
)
def test_what_is_killed_or_runs_out_does_not_fit_and_nothing_larger_does(ending):
    assert tried(Shared(), greedy(ending), "backprop", ROWS).unfit == {8, 16}
    assert [child for child in multiprocessing.active_children() if child.name == "wattune-fit"] == []


def test_two_micro_batches_are_tried_where_a_batch_has_several():
    # Four samples in parts of two never meet the limit of four; one pass over eight does.
    assert memory_fit._tried([BatchShape(2, 2), BatchShape(16, 2), BatchShape(16, 16), BatchShape(8, 8)]) == [
        BatchShape(4, 2),
        BatchShape(8, 8),
        BatchShape(16, 16),
    ]


@pytest.mark.slow
def test_a_batch_fits_in_micro_batches_that_fit():
    assert tried(Shared(), greedy(), "backprop", [BatchShape(16, 2), BatchShape(16, 4), BatchShape(16, 16)]).unfit == {
        16
    }


@pytest.mark.slow
def test_a_size_that_never_ends_does_not_fit(monkeypatch):
    monkeypatch.setattr(memory_fit, "WITHIN_S", 60.0)  # the first size also waits for the process to load torch
    assert tried(Shared(), greedy("asleep"), "backprop", ROWS).unfit == {8, 16}


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "said"), [("a bug", "ended with: 1"), ("gone", "ended with: 3; a script")])
def test_another_failure_is_an_error(ending, said, capfd):
    with pytest.raises(WorkloadError, match=said):
        tried(Shared(), greedy(ending), "backprop", ROWS)


@pytest.mark.slow
def test_the_other_process_is_the_first_to_be_killed():
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_score, args=(theirs,))
    process.start()
    assert ours.recv() == "1000"
    process.join()


def _score(connection):
    class Results:
        def send(self, said):
            connection.send(Path("/proc/self/oom_score_adj").read_text().strip())

    memory_fit._try(Results(), workload(batch_sizes=(2,)), "backprop", "cpu", [BatchShape(2, 2)])


@pytest.mark.slow
def test_a_profile_marks_them_and_measures_the_others():
    device = Shared()
    found = profile(device, greedy(), steps=1, reference=False)
    assert [(c.batch_size, c.out_of_memory) for c in found.cells] == [(2, False), (4, False), (8, True), (16, True)]
    assert found.notes == ()
    with pytest.raises(OutOfDeviceMemory, match="not even 8"):
        profile(device, greedy(batch_sizes=(8, 16)), reference=False)


def test_what_cannot_be_tried_apart_is_said():
    local = workload(data=lambda: None, batch_sizes=(2,), budget_samples=2)
    found = profile(Shared(), local, steps=1, reference=False)
    assert "cannot be sent" in found.notes[0]
    assert profile(Computer(), local, steps=1, reference=False).notes == ()
