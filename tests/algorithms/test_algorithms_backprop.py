"""Backpropagation against plain PyTorch."""

from itertools import islice

import pytest
import torch
from tests.algorithms.contract import TrainingAlgorithmContract, assert_same
from tests.support.algorithm_examples import Example, noisy_points, points, vectors
from torch import nn

from wattune.algorithms import ALGORITHMS, open_algorithm
from wattune.algorithms.backprop import Backprop
from wattune.errors import InputError, UnknownName, WorkloadError


class TestBackprop(TrainingAlgorithmContract):
    spec = "backprop"


class TestBackpropInMicroBatches(TrainingAlgorithmContract):
    spec = "backprop"
    micro_batch_size = 4


def test_it_equals_a_plain_training_loop() -> None:
    trainable = points()
    algorithm = Backprop(trainable, 8)
    losses = [s.loss for s in algorithm.run(islice(trainable.batches(8), 5))]

    model = trainable.model(0)
    optimizer = trainable.optimizer(model, 8)
    plain = []
    for x, y in islice(trainable.batches(8), 5):
        optimizer.zero_grad()
        loss = trainable.loss(model(x), y)
        loss.backward()
        optimizer.step()
        plain.append(loss.item())
    assert losses == plain
    assert_same(algorithm.module.state_dict(), model.state_dict())


@pytest.mark.parametrize("micro_batch_size", [1, 4, 5, 12])
def test_micro_batches_have_the_gradient_of_the_whole_batch(micro_batch_size: int) -> None:
    trainable = points(optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    whole = Backprop(trainable, 12)
    parts = Backprop(trainable, 12, micro_batch_size=micro_batch_size)
    batch = next(trainable.batches(12))
    (one,), (other,) = list(whole.run([batch])), list(parts.run([batch]))
    assert other.loss == pytest.approx(one.loss, rel=1e-6)
    for a, b in zip(whole.module.parameters(), parts.module.parameters(), strict=True):
        assert a.grad is not None
        assert torch.allclose(a, b, rtol=0, atol=1e-6 * float(a.grad.abs().max()))


@pytest.mark.parametrize("data_type", ["tf32", "bf16", "fp16"])
def test_lower_precision_learns_and_resumes(data_type: str) -> None:
    trainable = noisy_points(data_type=data_type)
    whole = Backprop(trainable, 16)
    steps = list(whole.run(islice(trainable.batches(16), 40)))
    assert sum(s.loss for s in steps[-5:]) < 0.9 * sum(s.loss for s in steps[:5])
    assert all(p.dtype == torch.float32 for p in whole.module.parameters())

    begun = Backprop(trainable, 16)
    list(begun.run(islice(trainable.batches(16), 20)))
    resumed = Backprop(trainable, 16)
    resumed.load_state_dict(begun.state_dict())
    list(resumed.run(islice(trainable.batches(16, start=320), 20)))
    assert_same(resumed.state_dict(), whole.state_dict())
    assert bool(whole.state_dict()["scaler"]) == (data_type == "fp16")


def test_autocast_computes_in_lower_precision() -> None:
    seen = []

    class Watching(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output = super().forward(x)
            seen.append(output.dtype)
            return output

    trainable = Example(lambda: Watching(12, 4), vectors(), data_type="bf16")
    list(Backprop(trainable, 4).run(islice(trainable.batches(4), 1)))
    assert seen == [torch.bfloat16]


class Engine(nn.Module):
    """A frozen engine in NumPy."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.detach().numpy() + 1)


@pytest.mark.parametrize("spec", ["backprop", "async-fgd", "forward-gradient:perturb=activities"])
def test_parameters_below_a_layer_without_a_derivative_are_named_once(spec: str) -> None:
    trainable = Example(
        lambda: nn.Sequential(nn.Linear(12, 12), nn.LayerNorm(12), Engine(), nn.Linear(12, 4)), vectors()
    )

    def train() -> None:
        list(open_algorithm(spec, trainable, 8).run(islice(trainable.batches(8), 3)))

    named = "0.weight, 0.bias, 1.weight, 1.bias; make the layers above them differentiable"
    with pytest.warns(UserWarning, match=f"no gradient for 4 of the model's trainable parameters.*: {named}") as caught:
        train()
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)


@pytest.mark.parametrize("spec", ["async-fgd", "async-fgd:modules=3", "forward-gradient:perturb=activities"])
def test_activities_refuse_a_layer_that_loses_the_derivative_of_a_block_below(spec: str) -> None:
    """It would learn from noise alone."""
    trainable = Example(
        lambda: nn.Sequential(*(nn.Linear(12, 12) for _ in range(2)), Engine(), nn.Linear(12, 4)), vectors()
    )
    with pytest.raises(WorkloadError, match=r"without a forward derivative: (Engine|the last module); train"):
        open_algorithm(spec, trainable, 8)


@pytest.mark.parametrize(("batch_size", "micro_batch_size"), [(0, None), (-1, None), (8, 0), (8, 9)])
def test_invalid_batch_sizes_are_refused(batch_size: int, micro_batch_size: int | None) -> None:
    with pytest.raises(InputError, match="batch size"):
        Backprop(points(), batch_size, micro_batch_size=micro_batch_size)


def test_the_state_of_another_model_is_refused() -> None:
    state = Backprop(points(), 8).state_dict()
    with pytest.raises(InputError, match="does not fit the model"):
        Backprop(noisy_points(), 8).load_state_dict(state)
    with pytest.raises(InputError, match="does not fit the model"):
        Backprop(points(), 8).load_state_dict({"module": state["module"]})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_registered_algorithm_opens(name: str) -> None:
    assert open_algorithm(name, points(), 8).name == name


def test_an_unknown_algorithm_lists_the_known() -> None:
    with pytest.raises(UnknownName, match=r"unknown algorithm: backdrop; allowed: .*backprop"):
        open_algorithm("backdrop", points(), 8)
