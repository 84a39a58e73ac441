"""Backpropagation of the last parts, against that of a model whose first layers are frozen."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from tests.algorithms.contract import TrainingAlgorithmContract, assert_same
from tests.support.algorithm_examples import Example, images, noisy_points, points, vectors
from tests.support.pipeline_examples import layers, noisy_images
from torch import nn

from wattune.algorithms import canonical, open_algorithm
from wattune.errors import InputError, WorkloadError


class TestContract(TrainingAlgorithmContract):
    spec = "backprop:last=1"

    def test_the_loss_falls(self) -> None:
        """Less than with all layers: the first one has random features."""
        _, steps = self.steps(points(), 60, batch_size=16)
        assert sum(s.loss for s in steps[-5:]) < 0.8 * sum(s.loss for s in steps[:5])

    def test_an_evaluation_is_less_work_than_a_step(self) -> None:
        """But not in memory: an evaluation finds the gradients of the step before, and the first pass does not."""
        algorithm = self.open(points(), 8)
        evaluation, step = algorithm.evaluation_work(8), algorithm.work()
        assert 0 < evaluation.flops < step.flops
        assert 0 < evaluation.kernels < step.kernels


def trained(trainable: Example, spec: str, micro: int | None) -> dict[str, Any]:
    algorithm = open_algorithm(spec, trainable, 8, micro_batch_size=micro)
    list(algorithm.run(islice(trainable.batches(8), 4)))
    return algorithm.state_dict()


@pytest.mark.parametrize("micro", [None, 3])
@pytest.mark.parametrize(("last", "frozen"), [(1, 6), (2, 3)])
def test_it_trains_as_backprop_with_the_first_layers_frozen(last: int, frozen: int, micro: int | None) -> None:
    whole = noisy_images()

    def build() -> nn.Module:
        model = whole.build()
        assert isinstance(model, nn.Sequential)
        for layer in model[:frozen]:
            layer.requires_grad_(False)
        return model

    begun = whole.model(0).state_dict()
    found = trained(whole, f"backprop:last={last}", micro)
    assert_same(found, trained(Example(build, images(8)), "backprop", micro))
    assert_same({k: found["module"][k] for k in ("0.weight", "1.bias")}, {k: begun[k] for k in ("0.weight", "1.bias")})
    assert found["module"]["1.num_batches_tracked"] > 0  # normalisation stays that of training


def test_all_parts_are_backprop() -> None:
    assert_same(trained(noisy_points(), "backprop:last=3", 4), trained(noisy_points(), "backprop", 4))


def deep(count: int) -> Example:
    def build() -> nn.Module:
        convolutions = [part for _ in range(count) for part in (nn.Conv2d(3, 3, 3, padding=1), nn.Tanh())]
        return nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 10))

    return Example(build, images(32))


def test_memory_does_not_grow_with_the_depth_of_the_frozen_parts() -> None:
    shallow, more = (open_algorithm("backprop:last=1", deep(count), 16).work() for count in (4, 16))
    assert more.peak_memory_bytes <= 1.05 * shallow.peak_memory_bytes
    assert more.peak_memory_bytes < 0.2 * open_algorithm("backprop", deep(16), 16).work().peak_memory_bytes
    backward = [next(p.flops for p in work.phases if p.phase == "backward") for work in (shallow, more)]
    assert backward[0] == backward[1] > 0


def test_what_it_cannot_do_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="last of the algorithm backprop: 5; allowed: 1 to 4, the number of the model"):
        open_algorithm("backprop:last=5", layers(), 8)
    with pytest.raises(InputError, match="allowed: checkpoint or last"):
        open_algorithm("backprop:checkpoint=2,last=1", layers(), 8)
    with pytest.raises(InputError, match="1 or more"):
        canonical("backprop:last=0")
    with pytest.raises(WorkloadError, match="cannot be cut into parts"):
        open_algorithm("backprop:last=1", Example(lambda: nn.Linear(12, 4), vectors()), 8)


def test_dropout_of_the_frozen_parts_is_that_of_training() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.5), nn.Linear(8, 4))

    trainable = Example(build, vectors(), optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    algorithm = open_algorithm("backprop:last=1", trainable, 8)
    (batch,) = islice(trainable.batches(8), 1)
    losses = [step.loss for step in algorithm.run([batch] * 3)]
    assert len(set(losses)) == 3
