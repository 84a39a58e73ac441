"""Cuts of a sequence of parts against all cuts there are, and what parts cost."""

from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.contract import assert_same
from tests.support.algorithm_examples import Example, images, noisy_points, vectors
from tests.support.pipeline_examples import opened
from torch import nn

from wattune.algorithms.forward import partition
from wattune.algorithms.forward.alpha import Alpha
from wattune.algorithms.forward.perturbed import Perturbed
from wattune.algorithms.model_parts import parts
from wattune.errors import InputError, WorkloadError


def perturbed(model: nn.Module) -> list[Perturbed]:
    alpha = Alpha(model, 8)
    return [Perturbed(part, alpha) for part in parts(model)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.data())
def test_the_cut_is_optimal_by_brute_force(costs: list[int], data: st.DataObject) -> None:
    modules = data.draw(st.integers(1, len(costs)))
    ends = partition.cut([float(c) for c in costs], modules)
    assert len(ends) == modules
    assert ends[-1] == len(costs)
    bounds = [0, *ends]
    assert all(a < b for a, b in pairwise(bounds))

    def dearest(ends: list[int]) -> int:
        return max(sum(costs[a:b]) for a, b in pairwise([0, *ends]))

    every = ([*inner, len(costs)] for inner in combinations(range(1, len(costs)), modules - 1))
    assert dearest(ends) == min(map(dearest, every))


def test_equal_parts_are_cut_evenly() -> None:
    assert partition.cut([1.0] * 8, 4) == [2, 4, 6, 8]
    assert partition.cut([1.0, 1.0, 1.0, 9.0], 2) == [3, 4]


def test_more_modules_than_parts_are_refused() -> None:
    with pytest.raises(InputError, match="1 to 3, the number of the model's parts"):
        partition.cut([1.0, 2.0, 3.0], 4)


def test_counted_costs_are_the_same_again_and_follow_the_work() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(12, 400), nn.ReLU(), nn.Linear(400, 400), nn.Linear(400, 4))

    trainable = Example(build, vectors())
    parts = perturbed(trainable.model(0))
    first, second = (partition.costs(trainable, parts, 64) for _ in range(2))
    assert first == second
    assert max(first) == first[2]
    assert all(seconds > 0 for seconds in first)


def test_costing_leaves_the_model_unchanged() -> None:
    trainable = noisy_points()
    model, wanted = trainable.model(0).eval(), trainable.model(0)
    torch.manual_seed(4)
    drawn = torch.rand(3)
    torch.manual_seed(4)
    partition.costs(trainable, perturbed(model), 8)
    assert torch.equal(torch.rand(3), drawn)
    assert_same(model.state_dict(), wanted.state_dict())
    assert not any(module.training for module in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_an_operation_that_does_not_run_with_tangents_is_named() -> None:
    class Looking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.grid_sample(x, torch.zeros(x.shape[0], 2, 2, 2), align_corners=False)

    trainable = Example(lambda: nn.Sequential(nn.Conv2d(3, 3, 1), Looking()), images(4))
    with pytest.raises(WorkloadError, match=r"without a forward derivative: \S*grid_sampler"):
        partition.costs(trainable, perturbed(trainable.model(0)), 2)


def test_parts_pass_one_tensor_on() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x

    trainable = Example(lambda: nn.Sequential(nn.Linear(12, 4), Two()), vectors())
    with pytest.raises(WorkloadError, match="tuple"):
        partition.costs(trainable, perturbed(trainable.model(0)), 2)


@pytest.mark.parametrize(("perturb", "ends"), [("weights", [1, 8]), ("activities", [2, 8])])
def test_modules_are_cut_by_what_their_parts_cost(perturb: str, ends: list[int]) -> None:
    """Seven cheap parts weigh less than the wide one in front; an activation stays with its perturbed layer."""

    def build() -> nn.Module:
        cheap = (part for _ in range(3) for part in (nn.Tanh(), nn.Linear(8, 8)))
        return nn.Sequential(nn.Linear(20_000, 8), *cheap, nn.Tanh())

    trainable = Example(build, vectors(20_000))
    assert opened(trainable, f"modules=2,perturb={perturb}", batch_size=32).cuts == ends


def test_a_frozen_part_costs_less_than_one_that_learns() -> None:
    def build(*, frozen: bool) -> nn.Module:
        begin = [nn.Linear(64, 64).requires_grad_(not frozen) for _ in range(4)]
        return nn.Sequential(*begin, *(nn.Linear(64, 64) for _ in range(4)))

    cuts = [
        opened(Example(lambda f=frozen: build(frozen=f), vectors(64)), "modules=2", batch_size=32).cuts[0]
        for frozen in (False, True)
    ]
    assert cuts[0] == 4 < cuts[1]
