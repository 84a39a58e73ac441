"""The pipeline of forward gradients against plain forward gradients, and its two backends against each other."""

from __future__ import annotations

from itertools import islice, pairwise
from typing import Any

import pytest
import torch
from tests.algorithms.contract import TrainingAlgorithmContract, assert_same
from tests.support.algorithm_examples import Example, points
from tests.support.pipeline_examples import (
    OPTIMIZERS,
    layers,
    noisy_images,
    noisy_layers,
    opened,
    separate_layers,
    trained,
)
from torch import Tensor

from wattune.algorithms import open_algorithm
from wattune.algorithms.forward.masks import RandomKey


class AsyncContract(TrainingAlgorithmContract):
    def noisy(self) -> Example:
        return separate_layers() if self.spec == "async-fgd" else noisy_layers()

    @pytest.mark.slow
    def test_the_loss_falls(self) -> None:
        # Without a backward pass it takes many more steps.
        _, steps = self.steps(points(), 450, batch_size=16)
        assert sum(s.loss for s in steps[-20:]) < 0.8 * sum(s.loss for s in steps[:20])


class TestTwoModules(AsyncContract):
    spec = "async-fgd"


@pytest.mark.slow
class TestWeights(AsyncContract):
    spec = "async-fgd:modules=4,perturb=weights"


@pytest.mark.slow
class TestDifferencesInThreads(AsyncContract):
    spec = "async-fgd:modules=4,perturb=differences,backend=threads"


del AsyncContract, TrainingAlgorithmContract  # without a spec of their own

# --------------------------------------------------------------------------------------------- what is computed


@pytest.mark.parametrize("example", [layers, noisy_layers, noisy_images])
def test_one_module_is_the_plain_forward_gradient(example: Any) -> None:
    trainable = example()
    ours, steps = trained(trainable, "modules=1")
    plain = open_algorithm("forward-gradient", trainable, 8)
    assert list(plain.run(islice(trainable.batches(8), 9))) == steps
    assert_same(ours.module.state_dict(), plain.module.state_dict())


def delayed(trainable: Example, ends: list[int], count: int) -> tuple[dict[str, Tensor], list[float]]:
    """The same training written down plainly: all versions of all parameters kept, each module at its own, and the
    derivative of the whole model by ``torch.func.jvp``."""
    model = trainable.model(0)
    optimizer = trainable.optimizer(model, 8)
    parts = [list(model.children())[a:b] for a, b in pairwise([0, *ends])]
    place = {id(p): k for k, part in enumerate(parts) for layer in part for p in layer.parameters()}
    names = {name: place[id(p)] for name, p in model.named_parameters()}
    versions = [{name: p.detach().clone() for name, p in model.named_parameters()}]
    losses = []
    for b, (x, y) in enumerate(islice(trainable.batches(8), count)):
        past = {name: versions[max(0, b - (len(ends) - 1 - k))][name] for name, k in names.items()}
        generators = [RandomKey(0, b, k).generator(torch.device("cpu")) for k in range(len(ends))]
        along = {}
        for k, generator in enumerate(generators):
            own = [name for name, module in names.items() if module == k]
            along |= {name: torch.empty_like(past[name]).normal_(generator=generator) for name in own}

        def loss(values: dict[str, Tensor], x: Tensor = x, y: Tensor = y) -> Tensor:
            return trainable.loss(torch.func.functional_call(model, values, (x,)), y)

        with torch.no_grad():
            found, derivative = torch.func.jvp(loss, (past,), (along,))
        for name, parameter in model.named_parameters():
            parameter.grad = derivative * along[name]
        optimizer.step()
        versions.append({name: p.detach().clone() for name, p in model.named_parameters()})
        losses.append(found.item())
    return versions[-1], losses


@pytest.mark.parametrize("modules", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 3, 4))])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_module_learns_with_its_delay(modules: int, optimizer: str) -> None:
    trainable = layers(optimizer=OPTIMIZERS[optimizer])
    ours, steps = trained(trainable, f"modules={modules}", 20)
    values, losses = delayed(trainable, ours.cuts if modules > 1 else [7], 20)
    # To rounding errors: the products of one layer may be added up in another order.
    assert [s.loss for s in steps] == pytest.approx(losses, rel=1e-5)
    for name, value in ours.module.state_dict().items():
        assert torch.allclose(value, values[name], rtol=1e-4, atol=1e-5), name


@pytest.mark.slow
@pytest.mark.parametrize("modules", [2, 3, 4])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("example", [noisy_layers, noisy_images])
def test_threads_equal_one_thread(example: Any, optimizer: str, modules: int) -> None:
    """Four modules are the longest pipeline, in which everything waits that can wait."""
    chosen, spec = OPTIMIZERS[optimizer], f"modules={modules},perturb=differences"
    one, steps = trained(example(optimizer=chosen), spec)
    many, others = trained(example(optimizer=chosen), f"{spec},backend=threads")
    assert steps == others
    assert_same(many.state_dict(), one.state_dict())


@pytest.mark.parametrize("options", ["perturb=weights", "perturb=activities", "perturb=differences,backend=threads"])
def test_a_batch_without_a_finite_loss_changes_nothing(options: str) -> None:
    trainable = layers()
    batches = list(islice(trainable.batches(8), 3))
    batches[1][0][0, 0] = float("nan")
    algorithm = opened(trainable, f"modules=3,{options}")
    states, losses = [], []
    for step in algorithm.run(batches):
        states.append({k: v.clone() for k, v in algorithm.module.state_dict().items()})
        losses.append(step.loss)
    assert [loss == loss for loss in losses] == [True, False, True]
    assert_same(states[1], states[0])
    assert all(bool(torch.isfinite(v).all()) for v in states[2].values())
    assert not torch.equal(states[2]["0.weight"], states[1]["0.weight"])
