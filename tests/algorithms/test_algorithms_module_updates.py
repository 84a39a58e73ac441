"""An optimizer's step in parts, beside the same step as a whole."""

from __future__ import annotations

import copy
from itertools import islice

import pytest
import torch
from tests.algorithms.contract import assert_same
from tests.support.pipeline_examples import layers, noisy_layers, opened, trained
from torch import nn

from wattune.algorithms.forward.alpha import Alpha
from wattune.algorithms.forward.stage import SEPARABLE, ModuleUpdates


def model() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3), nn.Linear(3, 2))


def with_gradients(parameters: list[nn.Parameter], seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=draws)


def groups(module: nn.Sequential) -> list[dict[str, object]]:
    """Settings differ within a module and cross the modules."""
    (a, b), *_ = ([*layer.parameters()] for layer in module)
    return [{"params": [a, *module[1].parameters()], "lr": 1e-2}, {"params": [b, *module[2].parameters()]}]


@pytest.mark.parametrize("kind", SEPARABLE)
def test_the_divided_step_equals_the_whole_bit_by_bit(kind: type[torch.optim.Optimizer]) -> None:
    whole, parted = model(), model()
    one, other = (kind(groups(module), lr=3e-3) for module in (whole, parted))  # type: ignore[call-arg]
    updates = ModuleUpdates(other, [parted[0].parameters(), nn.ModuleList(parted[1:]).parameters()], Alpha(parted, 1))
    assert updates.separate
    for step in range(6):
        for module in (whole, parted):
            with_gradients(list(module.parameters())[step % 2 :], step)
        if step == 3:  # as a resumption and a schedule do
            other.load_state_dict(copy.deepcopy(other.state_dict()))
            one.param_groups[0]["lr"] = other.param_groups[0]["lr"] = 1e-3
        one.step()
        one.zero_grad()
        for index in (1, 0):
            updates.part(index, step)
        updates.finish(step)
        assert all(p.grad is None for p in parted.parameters())
        assert_same(parted.state_dict(), whole.state_dict())
    assert_same(other.state_dict(), one.state_dict())


class Clipped(torch.optim.SGD):
    """Its step depends on the gradients of all parameters together."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Clip by the norm, then as SGD."""
        nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 1e-3)
        super().step()


def test_an_optimizer_of_another_kind_takes_its_step_as_a_whole() -> None:
    results = []
    for backend in ("sequential", "threads"):
        trainable = layers(optimizer=lambda p: Clipped(p, lr=1.0))
        algorithm, steps = trained(trainable, f"modules=3,backend={backend}", 6)
        begun = opened(trainable, "modules=3").module
        moved = sum(
            float((a - b).detach().square().sum())
            for a, b in zip(algorithm.module.parameters(), begun.parameters(), strict=True)
        )
        assert 0 < moved <= (6 * 1e-3) ** 2 * 1.01
        results.append((steps, algorithm.state_dict()))
    assert results[0][0] == results[1][0]
    assert_same(results[0][1], results[1][1])


def test_an_observed_step_is_taken_as_a_whole() -> None:
    seen: list[int] = []
    trainable = layers()
    algorithm = opened(trainable, "modules=2,backend=threads")
    handle = algorithm._optimizer.register_step_post_hook(lambda *_: seen.append(1))
    assert len(list(algorithm.run(islice(trainable.batches(8), 4)))) == len(seen) == 4
    handle.remove()
    scheduler = torch.optim.lr_scheduler.ConstantLR(algorithm._optimizer, factor=0.5)
    list(algorithm.run(islice(trainable.batches(8, start=32), 2)))
    scheduler.step()  # which would warn of a step that it has not seen


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEPARABLE)
def test_threads_equal_sequential_modules(kind: type[torch.optim.Optimizer]) -> None:
    trainable = noisy_layers(optimizer=lambda p: kind(p, lr=1e-3))  # type: ignore[call-arg]
    (one, steps), (other, others) = (
        trained(trainable, f"modules=3,backend={backend}", 6) for backend in ("sequential", "threads")
    )
    assert steps == others
    assert_same(one.state_dict(), other.state_dict())
