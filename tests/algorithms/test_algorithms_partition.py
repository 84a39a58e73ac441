"""Cuts of a sequence of parts against all cuts there are, and what parts cost."""

from itertools import combinations, islice, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.contract import assert_same
from tests.support.algorithm_examples import Example, noisy_points, vectors
from tests.support.pipeline_examples import layers, opened
from torch import nn

from wattune.algorithms import open_algorithm
from wattune.algorithms.forward.async_fgd import cut
from wattune.errors import InputError, WorkloadError


@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.data())
def test_the_cut_is_optimal_by_brute_force(costs: list[int], data: st.DataObject) -> None:
    modules = data.draw(st.integers(1, len(costs)))
    ends = cut([float(c) for c in costs], modules)
    assert len(ends) == modules
    assert ends[-1] == len(costs)
    bounds = [0, *ends]
    assert all(a < b for a, b in pairwise(bounds))

    def dearest(ends: list[int]) -> int:
        return max(sum(costs[a:b]) for a, b in pairwise([0, *ends]))

    every = ([*inner, len(costs)] for inner in combinations(range(1, len(costs)), modules - 1))
    assert dearest(ends) == min(map(dearest, every))


def test_equal_parts_are_cut_evenly() -> None:
    assert cut([1.0] * 8, 4) == [2, 4, 6, 8]
    assert cut([1.0, 1.0, 1.0, 9.0], 2) == [3, 4]


def test_counting_costs_leaves_the_model_and_the_random_state_unchanged() -> None:
    trainable = noisy_points()
    torch.manual_seed(4)
    drawn = torch.rand(3)
    torch.manual_seed(4)
    opened_one = opened(trainable, "modules=3")
    assert torch.equal(torch.rand(3), drawn)
    assert_same(opened_one.module.state_dict(), trainable.model(0).state_dict())
    assert all(p.grad is None for p in opened_one.module.parameters())


def test_parts_pass_one_tensor_on() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x

    with pytest.raises(WorkloadError, match="tuple"):
        opened(Example(lambda: nn.Sequential(nn.Linear(12, 4), Two()), vectors()), "modules=2")


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


@pytest.mark.parametrize("perturb", ["weights", "activities", "differences"])
def test_modules_end_where_the_cuts_say(perturb: str) -> None:
    spec = f"async-fgd:cuts=2/3,perturb={perturb}"
    algorithm = open_algorithm(spec, layers(), 8)
    assert (algorithm.name, algorithm.state_dict()["cuts"]) == (spec, [2, 3, 7])
    assert len(list(algorithm.run(islice(layers().batches(8), 4)))) == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("cuts=3/2", "cuts of the algorithm async-fgd: 3/2; allowed: numbers of the parts that modules end with"),
        ("cuts=0/2", "cuts of the algorithm async-fgd: 0/2"),
        ("cuts=2/7", "cuts of async-fgd: 7; allowed: 1 to 6, for the model has 7 parts"),
        ("cuts=2,modules=2", "cuts of async-fgd: 2; allowed: without modules"),
    ],
)
def test_cuts_that_the_model_does_not_have_are_refused(options: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        open_algorithm(f"async-fgd:{options}", layers(), 8)
