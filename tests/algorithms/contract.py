"""Contract of every training algorithm: run by the tests of each implementation."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.algorithm_examples import Example, noisy_points, points
from torch import Tensor

from wattune.algorithms import Step, Trainable, TrainingAlgorithm, load_checkpoint, open_algorithm, save_checkpoint
from wattune.records import StepWork


def flat(values: Any, place: str = "") -> dict[str, Any]:
    """Every leaf of nested dictionaries and lists by its place."""
    if isinstance(values, dict):
        return {k: v for key, value in values.items() for k, v in flat(value, f"{place}/{key}").items()}
    if isinstance(values, (list, tuple)):
        return {k: v for i, value in enumerate(values) for k, v in flat(value, f"{place}/{i}").items()}
    return {place: values}


def assert_same(found: Any, wanted: Any) -> None:
    """The same places, and at each of them bit by bit the same."""
    a, b = flat(found), flat(wanted)
    assert a.keys() == b.keys()
    for place, value in a.items():
        if isinstance(value, Tensor):
            assert value.dtype == b[place].dtype, place
            assert torch.equal(value, b[place]), place
        else:
            assert value == b[place], place


class TrainingAlgorithmContract:
    """Give ``spec`` in a subclass."""

    spec: str
    micro_batch_size: int | None = None

    def open(self, trainable: Trainable, batch_size: int, *, seed: int = 0) -> TrainingAlgorithm:
        return open_algorithm(self.spec, trainable, batch_size, micro_batch_size=self.micro_batch_size, seed=seed)

    def noisy(self) -> Example:
        """Something to train with everything that a resumption can forget, and that this algorithm can train."""
        return noisy_points()

    def steps(self, trainable: Example, count: int, *, start: int = 0, batch_size: int = 8) -> tuple[Any, list[Step]]:
        algorithm = self.open(trainable, batch_size)
        batches = islice(trainable.batches(batch_size, start=start), count)
        return algorithm, list(algorithm.run(batches))

    def test_one_step_per_batch_in_order(self) -> None:
        standing = points(optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
        algorithm, steps = self.steps(standing, 5)
        model = standing.model(0)
        wanted = [standing.loss(model(x), y).item() for x, y in islice(standing.batches(8), 5)]
        assert [s.samples for s in steps] == [8] * 5
        assert [s.loss for s in steps] == pytest.approx(wanted, rel=1e-5)
        assert algorithm.name

    def test_no_batches_give_no_steps(self) -> None:
        algorithm = self.open(points(), 8)
        before = algorithm.state_dict()
        assert list(algorithm.run([])) == []
        assert_same(algorithm.state_dict(), before)

    def test_the_loss_falls(self) -> None:
        _, steps = self.steps(points(), 60, batch_size=16)
        assert sum(s.loss for s in steps[-5:]) < 0.7 * sum(s.loss for s in steps[:5])

    def test_stopping_leaves_the_parameters_at_the_last_step(self) -> None:
        trainable = self.noisy()
        stopped = self.open(trainable, 8)
        for _ in islice(stopped.run(trainable.batches(8)), 3):
            pass
        ended, _ = self.steps(trainable, 3)
        assert_same(stopped.module.state_dict(), ended.module.state_dict())

    def test_the_seed_determines_the_run(self) -> None:
        trainable = self.noisy()
        losses = [
            [s.loss for s in self.open(trainable, 8, seed=seed).run(islice(trainable.batches(8), 3))]
            for seed in (1, 1, 2)
        ]
        assert losses[0] == losses[1] != losses[2]

    def test_a_new_instance_resumes_exactly(self, tmp_path: Path) -> None:
        trainable = self.noisy()
        whole, steps = self.steps(trainable, 3)
        steps += whole.run(islice(trainable.batches(8, start=24), 3))
        begun, first = self.steps(trainable, 3)
        save_checkpoint(tmp_path / "state", begun.state_dict(), extra={})
        torch.manual_seed(99)  # whatever the new process has drawn
        resumed = self.open(trainable, 8, seed=5)
        resumed.load_state_dict(load_checkpoint(tmp_path / "state")[0])
        rest = list(resumed.run(islice(trainable.batches(8, start=24), 3)))
        assert first + rest == steps
        assert_same(load_checkpointed(resumed, tmp_path), load_checkpointed(whole, tmp_path))

    def test_a_state_is_a_copy(self) -> None:
        trainable = self.noisy()
        algorithm, _ = self.steps(trainable, 2)
        state = algorithm.state_dict()
        resumed = [self.open(trainable, 8) for _ in range(2)]
        for other in resumed:
            other.load_state_dict(state)
            list(other.run(islice(trainable.batches(8, start=16), 2)))
        list(algorithm.run(islice(trainable.batches(8, start=16), 2)))
        assert_same(resumed[0].state_dict(), algorithm.state_dict())
        assert_same(resumed[1].state_dict(), algorithm.state_dict())

    def test_code_between_steps_changes_nothing(self) -> None:
        trainable = self.noisy()
        undisturbed, _ = self.steps(trainable, 4)
        disturbed = self.open(trainable, 8)
        for _ in disturbed.run(islice(trainable.batches(8), 4)):
            torch.rand(7)
            disturbed.module.eval()
            with torch.no_grad():
                disturbed.module(torch.randn(3, 12))
            disturbed.module.train()
            disturbed.work()
            disturbed.evaluation_work(5)
        assert_same(disturbed.state_dict(), undisturbed.state_dict())

    def test_training_leaves_the_global_random_state_alone(self) -> None:
        torch.manual_seed(3)
        wanted = torch.rand(4)
        torch.manual_seed(3)
        algorithm, _ = self.steps(self.noisy(), 2)
        algorithm.work()
        assert torch.equal(torch.rand(4), wanted)

    def test_work_is_positive_and_scales(self) -> None:
        trainable = points(host_s_per_sample=1e-3)
        small, large = (self.open(trainable, b).work() for b in (8, 16))
        for work, batch_size in ((small, 8), (large, 16)):
            assert (work.samples, work.data_type) == (batch_size, "fp32")
            assert work.phases[0].phase == "host"
            assert work.phases[0].host_s == pytest.approx(batch_size * 1e-3)
            assert all(p.flops > 0 and p.bytes > 0 and p.kernels > 0 for p in work.phases[1:])
            assert work.peak_memory_bytes > 0
        assert small.kernels <= large.kernels
        assert _matmul(large) == 2 * _matmul(small)
        assert small.flops < large.flops < 2 * small.flops
        assert small.bytes < large.bytes < 2 * small.bytes
        assert small.peak_memory_bytes < large.peak_memory_bytes

    def test_an_evaluation_is_less_work_than_a_step(self) -> None:
        algorithm = self.open(points(host_s_per_sample=1e-3), 8)
        evaluation, step = algorithm.evaluation_work(8), algorithm.work()
        assert [p.phase for p in evaluation.phases] == ["host", "forward"]
        assert evaluation.samples == 8
        assert 0 < evaluation.flops < step.flops
        assert 0 < evaluation.kernels < step.kernels
        assert 0 < evaluation.peak_memory_bytes <= step.peak_memory_bytes


def _matmul(work: StepWork) -> float:
    return sum(o.flops for p in work.phases for o in p.operations if o.kind == "matmul")


def load_checkpointed(algorithm: TrainingAlgorithm, folder: Path) -> dict[str, Any]:
    """The state as it comes back from a file, so that tuples and lists are the same."""
    return load_checkpoint(save_checkpoint(folder / "compared", algorithm.state_dict(), extra={}))[0]
