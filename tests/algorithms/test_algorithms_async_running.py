"""The pipeline stopped and gone on with, its threads and its devices."""

from __future__ import annotations

import threading
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.contract import assert_same
from tests.support.algorithm_examples import Example, vectors
from tests.support.pipeline_examples import (
    Failing,
    Meeting,
    Waiting,
    layers,
    noisy_layers,
    opened,
    separate_layers,
    trained,
)
from torch import nn

from wattune.algorithms import load_checkpoint
from wattune.algorithms.checkpoint import save_checkpoint
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.async_fgd import AsyncForwardGradient
from wattune.errors import InputError

THREADS = "modules=4,perturb=differences,backend=threads"

# --------------------------------------------------------------------------------------------- stopping and going on


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), min_size=1, max_size=4),
    st.sampled_from(["modules=4", "modules=3,perturb=activities,directions=2", THREADS]),
)
def test_a_run_stopped_anywhere_resumes_exactly(runs: list[tuple[int, int, bool]], options: str) -> None:
    """A new instance goes on as the one that was stopped, whatever was in flight then."""
    trainable = separate_layers() if "activities" in options else noisy_layers()
    one, other = opened(trainable, options), opened(trainable, options.removesuffix(",backend=threads"))
    done = 0
    for taken, more, anew in runs:
        batches = list(islice(trainable.batches(8, start=8 * done), taken + more))
        steps = list(islice(one.run(batches), taken))
        assert steps == list(islice(other.run(batches), taken))
        done += taken
        if anew:
            state = one.state_dict()
            one = opened(trainable, options, seed=7)
            one.load_state_dict(state)
        assert_same(one.state_dict(), other.state_dict())


@pytest.mark.parametrize("options", ["modules=3", "modules=3,perturb=activities,directions=2", THREADS])
def test_a_checkpoint_in_the_middle_of_a_run_has_no_batch_in_flight(tmp_path: Path, options: str) -> None:
    trainable = separate_layers()
    algorithm = opened(trainable, options)
    run = algorithm.run(islice(trainable.batches(8), 12))
    begun = list(islice(run, 5))
    save_checkpoint(tmp_path / "state", algorithm.state_dict(), extra={})
    wanted = list(run)  # of the run that is under way, beginning again with the batches that were in flight
    resumed = opened(trainable, options, seed=3)
    resumed.load_state_dict(load_checkpoint(tmp_path / "state")[0])
    assert list(resumed.run(islice(trainable.batches(8, start=40), 7))) == wanted
    assert (len(begun), len(wanted)) == (5, 7)
    assert_same(resumed.state_dict(), algorithm.state_dict())


@pytest.mark.parametrize("options", ["modules=4", THREADS])
def test_a_stopped_run_leaves_the_buffers_at_its_last_step(options: str) -> None:
    trainable = noisy_layers()
    stopped = opened(trainable, options)
    list(islice(stopped.run(trainable.batches(8)), 3))
    ended, _ = trained(trainable, options, 3)
    assert_same(stopped.module.state_dict(), ended.module.state_dict())
    assert int(stopped.module[1].num_batches_tracked) == 3  # type: ignore[index, arg-type]


# --------------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize(("backend", "patience_s"), [("sequential", 0.001), ("threads", 0.2)])
def test_modules_of_different_threads_compute_at_the_same_time(
    backend: str, patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = Meeting(4)
    monkeypatch.setattr(Waiting, "meeting", meeting, raising=False)
    trainable = Example(lambda: nn.Sequential(*(Waiting() for _ in range(4))), vectors(classes=12))
    algorithm = opened(trainable, f"modules=4,perturb=differences,backend={backend}")
    assert not meeting.met.is_set()
    meeting.patience_s = patience_s
    assert len(list(algorithm.run(islice(trainable.batches(8), 24)))) == 24
    assert meeting.met.is_set() == (backend == "threads")


def idle_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("module ")]


@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize("options", ["modules=4", "modules=4,perturb=activities", THREADS])
def test_the_error_of_a_failed_module_is_raised(place: int, options: str) -> None:
    trainable = Example(lambda: nn.Sequential(*(Failing() for _ in range(4))), vectors(classes=12))
    algorithm = opened(trainable, options)
    algorithm.module[place].at = algorithm.module[place].passes + 5  # type: ignore[index]
    with pytest.raises(RuntimeError, match="fell over"):
        list(algorithm.run(islice(trainable.batches(8), 20)))
    assert idle_threads() == []
    with forward_ad.level():
        assert torch.equal(forward_ad.unpacked(forward_ad.dual(torch.zeros(2), torch.ones(2)))[1], torch.ones(2))


def test_stopping_early_ends_the_threads() -> None:
    trainable = layers()
    algorithm = opened(trainable, THREADS)
    steps = algorithm.run(trainable.batches(8))
    next(steps)
    assert len(idle_threads()) == 4
    steps.close()  # type: ignore[attr-defined]
    assert idle_threads() == []


def test_the_thread_count_of_operations_is_restored() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        trainable = layers()
        for _ in opened(trainable, THREADS).run(islice(trainable.batches(8), 3)):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_second_concurrent_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(2)
    monkeypatch.setattr(Waiting, "meeting", meeting, raising=False)
    trainable = Example(lambda: nn.Sequential(Waiting(), nn.Linear(12, 12)), vectors(classes=12))
    trainings = [opened(trainable, "modules=2") for _ in range(2)]
    begun, failures = threading.Barrier(2), []

    def train(algorithm: AsyncForwardGradient) -> None:
        begun.wait()
        try:
            list(algorithm.run(islice(trainable.batches(8), 10)))
        except InputError as error:
            failures.append(str(error))
            meeting.met.set()

    meeting.patience_s = 60.0  # the first one trains until the second has failed
    threads = [threading.Thread(target=train, args=(training,)) for training in trainings]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures) == 1
    assert "a second training run with forward gradients in this process" in failures[0]
    assert idle_threads() == []
    assert len(list(opened(trainable, "modules=2").run(islice(trainable.batches(8), 1)))) == 1
