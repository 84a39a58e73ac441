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

from wattune.algorithms import Step, load_checkpoint
from wattune.algorithms.checkpoint import save_checkpoint
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.async_fgd import AsyncForwardGradient
from wattune.errors import InputError

# --------------------------------------------------------------------------------------------- stopping and going on


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), min_size=1, max_size=4),
    st.sampled_from(
        ["modules=4", "modules=3,perturb=activities,directions=2", "modules=2,backend=threads", "modules=1"]
    ),
)
def test_a_run_stopped_anywhere_resumes_exactly(runs: list[tuple[int, int, bool]], options: str) -> None:
    trainable = separate_layers() if "activities" in options else noisy_layers()
    algorithm = opened(trainable, options)
    steps: list[Step] = []
    for taken, more, anew in runs:
        batches = islice(trainable.batches(8, start=8 * len(steps)), taken + more)
        steps += islice(algorithm.run(batches), taken)
        if anew:
            state = algorithm.state_dict()
            algorithm = opened(trainable, options, seed=7)
            algorithm.load_state_dict(state)
    steps += algorithm.run(islice(trainable.batches(8, start=8 * len(steps)), 5))
    whole, wanted = trained(trainable, options, len(steps))
    assert steps == wanted
    assert_same(algorithm.state_dict(), whole.state_dict())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "modules=4",
        pytest.param("modules=4,perturb=activities", marks=pytest.mark.slow),
    ],
)
def test_batches_in_flight_survive_a_checkpoint(tmp_path: Path, options: str) -> None:
    trainable = separate_layers()
    whole, wanted = trained(trainable, options, 10)
    stopped = opened(trainable, options)
    steps = list(islice(stopped.run(trainable.batches(8)), 4))
    save_checkpoint(tmp_path / "state", stopped.state_dict(), extra={})
    resumed = opened(trainable, options, seed=3)
    resumed.load_state_dict(load_checkpoint(tmp_path / "state")[0])
    steps += resumed.run(islice(trainable.batches(8, start=32), 6))
    assert steps == wanted
    assert_same(resumed.module.state_dict(), whole.module.state_dict())


def test_a_state_of_another_model_is_refused() -> None:
    algorithm, _ = trained(layers(), "modules=2")
    with pytest.raises(InputError, match="does not fit the model"):
        opened(noisy_layers(), "modules=2").load_state_dict(algorithm.state_dict())


def test_a_state_brings_its_cuts() -> None:
    trainable = layers()
    algorithm, _ = trained(trainable, "modules=2,cuts=2-7")
    other = opened(trainable, "modules=2")
    assert other.cuts != [2, 7]
    other.load_state_dict(algorithm.state_dict())
    assert other.cuts == [2, 7]


# --------------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize(("backend", "patience_s"), [("sequential", 0.001), ("threads", 0.2)])
def test_modules_of_different_threads_compute_at_the_same_time(
    backend: str, patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = Meeting(4)
    monkeypatch.setattr(Waiting, "meeting", meeting, raising=False)
    trainable = Example(lambda: nn.Sequential(*(Waiting() for _ in range(4))), vectors(classes=12))
    algorithm = opened(trainable, f"modules=4,cuts=1-2-3-4,backend={backend}")
    assert not meeting.met.is_set()
    meeting.patience_s = patience_s
    assert len(list(algorithm.run(islice(trainable.batches(8), 24)))) == 24
    assert meeting.met.is_set() == (backend == "threads")


def idle_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("module ")]


@pytest.mark.parametrize("backend", ["sequential", "threads"])
@pytest.mark.parametrize("place", [0, 1, 2, 3])
@pytest.mark.parametrize("perturb", ["weights", "activities"])
def test_the_error_of_a_failed_module_is_raised(place: int, backend: str, perturb: str) -> None:
    trainable = Example(lambda: nn.Sequential(*(Failing() for _ in range(4))), vectors(classes=12))
    algorithm = opened(trainable, f"modules=4,cuts=1-2-3-4,backend={backend},perturb={perturb}")
    algorithm.module[place].at = algorithm.module[place].passes + 5  # type: ignore[index]
    with pytest.raises(RuntimeError, match="fell over"):
        list(algorithm.run(islice(trainable.batches(8), 20)))
    assert idle_threads() == []
    with forward_ad.level():
        assert torch.equal(forward_ad.unpacked(forward_ad.dual(torch.zeros(2), torch.ones(2)))[1], torch.ones(2))


def test_stopping_early_ends_the_threads() -> None:
    trainable = layers()
    algorithm = opened(trainable, "modules=4,backend=threads")
    steps = algorithm.run(trainable.batches(8))
    next(steps)
    assert len(idle_threads()) == 3
    steps.close()  # type: ignore[attr-defined]
    assert idle_threads() == []


def test_the_thread_count_of_operations_is_restored() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        trainable = layers()
        for _ in opened(trainable, "modules=2,backend=threads").run(islice(trainable.batches(8), 3)):
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_second_concurrent_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(2)
    monkeypatch.setattr(Waiting, "meeting", meeting, raising=False)
    trainable = Example(lambda: nn.Sequential(Waiting(), nn.Linear(12, 12)), vectors(classes=12))
    trainings = [opened(trainable, "modules=2,backend=threads") for _ in range(2)]
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


# --------------------------------------------------------------------------------------------- devices


def test_a_device_for_each_module() -> None:
    trainable = layers()
    one, steps = trained(trainable, "modules=3")
    placed = AsyncForwardGradient(trainable, 8, modules=3, devices=[torch.device("cpu")] * 3)
    assert list(placed.run(islice(trainable.batches(8), 9))) == steps
    assert_same(placed.module.state_dict(), one.module.state_dict())
    with pytest.raises(InputError, match="devices of async-fgd: 2; allowed: 3, one for each module"):
        AsyncForwardGradient(trainable, 8, modules=3, devices=[torch.device("cpu")] * 2)


def test_inputs_move_to_the_device_of_their_module() -> None:
    stage = opened(layers(), "modules=2").pipeline.stages[1]
    stage.device = torch.device("meta")
    stage.receive(3, (torch.ones(2, 16), torch.ones(2, 16)))
    x, tangent = stage.inbox[3]
    assert tangent is not None
    assert (x.device.type, tangent.device.type) == ("meta", "meta")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("backend", ["sequential", "threads"])
def test_modules_on_cpu_and_gpu(backend: str) -> None:
    trainable = layers()
    _, steps = trained(trainable, "modules=2")
    devices = [torch.device("cpu"), torch.device("cuda", 0)]
    placed = AsyncForwardGradient(trainable, 8, modules=2, backend=backend, devices=devices)
    resumed = list(placed.run(islice(trainable.batches(8), 9)))
    assert len(resumed) == len(steps)
    assert resumed[0].loss == pytest.approx(steps[0].loss, rel=1e-4)
    assert placed.module(next(trainable.batches(8))[0]).device.type == "cuda"


def test_a_state_with_other_activities_is_refused_in_one_line() -> None:
    """Of a run by an earlier version, which did not note the directions, or with another number of them."""
    algorithm = opened(separate_layers(), "modules=2,perturb=activities")
    former = {key: value for key, value in algorithm.state_dict().items() if key != "directions"}
    other = opened(separate_layers(), "modules=2,perturb=activities,directions=2").state_dict()
    for state in (former, other):
        with pytest.raises(InputError, match="batches in flight have other perturbed activities") as refused:
            algorithm.load_state_dict(state)
        assert "\n" not in str(refused.value)


def test_a_state_with_local_losses_is_refused_in_one_line() -> None:
    """Of a run by an earlier version."""
    algorithm = opened(layers(), "modules=2")
    state = {**algorithm.state_dict(), "heads": {"0.weight": torch.zeros(1)}}
    with pytest.raises(InputError, match="it is of a run with local losses") as refused:
        algorithm.load_state_dict(state)
    assert "\n" not in str(refused.value)
