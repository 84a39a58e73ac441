from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.pipeline_examples import layers
from torch import nn

from wattune.algorithms import open_algorithm
from wattune.algorithms.forward.alpha import Alpha, Schedule
from wattune.errors import InputError


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 2))


def rates(alpha: Alpha, net: nn.Sequential, step: int) -> list[float]:
    """What multiplies the learning rate of each linear layer; 0 for one that does not learn."""
    layers = [net[i].weight for i in (0, 2, 3)]
    optimizer, learning = torch.optim.SGD(layers, lr=1.0), {id(p) for p in alpha.learning(layers, step)}
    with alpha.applied(optimizer, step):
        found = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    return [found[id(p)] * (id(p) in learning) for p in layers]


def test_without_a_schedule_every_trained_parameter_has_its_full_rate():
    net = model()
    net[0].requires_grad_(False)
    assert rates(Alpha(net, 8), net, 0) == [0.0, 1.0, 1.0]


def test_the_schedule_of_the_paper():
    net = model()
    alpha = Alpha(net, 10, Schedule(alpha=0.15, epoch_samples=100))
    assert rates(alpha, net, 0) == [0.0, 0.0, 1.0]
    assert rates(alpha, net, 99) == [0.0, 0.0, 1.0]  # the last step of the tenth epoch
    assert rates(alpha, net, 150) == pytest.approx([0.075, 0.075, 1.0])
    assert rates(alpha, net, 200) == rates(alpha, net, 10_000) == pytest.approx([0.15, 0.15, 1.0])


def test_the_head_is_the_last_trained_layer_or_the_one_given():
    net = model()
    assert rates(Alpha(net, 1, Schedule(alpha=0.5)), net, 0) == [0.5, 0.5, 1.0]
    assert rates(Alpha(net, 1, Schedule(alpha=0.5), net[2:].parameters()), net, 0) == [0.5, 1.0, 1.0]
    net[3].requires_grad_(False)
    assert rates(Alpha(net, 1, Schedule(alpha=0.5)), net, 0) == [0.5, 1.0, 0.0]


@pytest.mark.parametrize("spec", ["forward-gradient:", "async-fgd:cuts=6,", "async-fgd:perturb=weights,"])
def test_alpha_opens_the_named_layers_alone(spec: str) -> None:
    """Of four linear layers the third; the fourth is the head."""
    trainable = layers()
    algorithm, begun = open_algorithm(f"{spec}alpha=0.5,layers=5", trainable, 8), trainable.model(0)
    list(algorithm.run(islice(trainable.batches(8), 4)))
    pairs = zip(algorithm.module.parameters(), begun.parameters(), strict=True)
    assert [not torch.equal(a, b) for a, b in pairs][::2] == [False, False, True, True]
    with pytest.raises(InputError, match="layers of the algorithm: 8; allowed: 1 to 7"):
        open_algorithm(f"{spec}layers=8", trainable, 8)


def test_the_optimizer_keeps_its_own_groups_and_rates():
    net = model()
    optimizer = torch.optim.SGD([{"params": net[:3].parameters()}, {"params": net[3].parameters(), "lr": 0.2}], lr=0.1)
    groups = optimizer.param_groups
    with Alpha(net, 1, Schedule(alpha=0.5), net[2:].parameters()).applied(optimizer, 0):
        assert [(group["lr"], len(group["params"])) for group in optimizer.param_groups] == [
            (0.05, 2),
            (0.1, 2),
            (0.2, 2),
        ]
    assert optimizer.param_groups is groups
    assert [group["lr"] for group in groups] == [0.1, 0.2]


class WithoutRate(torch.optim.Optimizer):
    """An optimizer whose steps no learning rate scales."""

    def __init__(self, parameters: list[nn.Parameter]):
        super().__init__(parameters, {})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Change nothing."""


@pytest.mark.parametrize("name", ["forward-gradient", "async-fgd"])
def test_an_optimizer_without_a_learning_rate_is_refused(name: str) -> None:
    open_algorithm(name, layers(optimizer=WithoutRate), 8)
    with pytest.raises(InputError, match=r"alpha .* WithoutRate; allowed: an optimizer with a learning rate"):
        open_algorithm(f"{name}:alpha=0.15", layers(optimizer=WithoutRate), 8)


class Whole(torch.optim.SGD):
    """An optimizer of another kind, which takes its step as a whole."""


def moved_below_the_head(spec: str, optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> float:
    """Distance by which 30 steps move the layers below the head."""
    trainable = layers(optimizer=optimizer)
    algorithm, begun = open_algorithm(spec, trainable, 8), trainable.model(0)
    list(algorithm.run(islice(trainable.batches(8), 30)))
    pairs = zip([*algorithm.module.parameters()][:-2], [*begun.parameters()][:-2], strict=True)
    return math.sqrt(sum(float((a - b).detach().square().sum()) for a, b in pairs))


@pytest.mark.parametrize(
    "spec", ["forward-gradient:", "forward-gradient:perturb=activities,", "async-fgd:perturb=weights,"]
)
@pytest.mark.parametrize(
    "kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop, Whole], ids=lambda kind: str(kind.__name__)
)
def test_below_the_head_alpha_scales_the_steps_of_every_optimizer(kind: type[torch.optim.Optimizer], spec: str) -> None:
    full, scaled = (
        moved_below_the_head(f"{spec}alpha={alpha}", lambda p: kind(p, lr=1e-3))  # type: ignore[call-arg]
        for alpha in (1, 0.15)
    )
    assert scaled == pytest.approx(0.15 * full, rel=0.25)


@given(alpha=st.floats(0, 1), samples=st.floats(0, 1e6), more=st.floats(0, 1e6))
def test_the_rate_rises_monotonically_to_alpha(alpha, samples, more):
    schedule = Schedule(alpha=alpha, epoch_samples=1000)
    assert 0 <= schedule.at(samples) <= schedule.at(samples + more) <= alpha
    assert schedule.at(20_000) == pytest.approx(alpha)
