"""Where the modules of a pipeline end."""

from itertools import islice

import pytest
import torch
from tests.algorithms.contract import assert_same
from tests.support.algorithm_examples import Example, noisy_points, vectors
from tests.support.pipeline_examples import layers, opened
from torch import nn

from wattune.algorithms import open_algorithm
from wattune.errors import InputError, WorkloadError


def test_modules_have_equal_numbers_of_parts_or_of_blocks() -> None:
    """Seven parts; the activation stays with the layer whose output is perturbed."""
    assert opened(layers(), "modules=3").cuts == [2, 4, 7]
    assert opened(layers(), "modules=3,perturb=activities").cuts == [2, 4, 7]


def test_looking_for_the_exact_end_leaves_the_model_and_the_random_state_unchanged() -> None:
    trainable = noisy_points()
    torch.manual_seed(4)
    drawn = torch.rand(3)
    torch.manual_seed(4)
    opened_one = opened(trainable, "modules=3,perturb=differences")
    assert torch.equal(torch.rand(3), drawn)
    assert_same(opened_one.module.state_dict(), trainable.model(0).state_dict())
    assert all(p.grad is None for p in opened_one.module.parameters())


def test_parts_pass_one_tensor_on() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x, x

    with pytest.raises(WorkloadError, match="tuple"):
        opened(Example(lambda: nn.Sequential(nn.Linear(12, 4), Two()), vectors()), "modules=2")


@pytest.mark.parametrize("perturb", ["weights", "activities", "differences"])
def test_modules_end_where_the_cuts_say(perturb: str) -> None:
    spec = f"async-fgd:cuts=2/3,perturb={perturb}"
    algorithm = open_algorithm(spec, layers(), 8)
    assert (algorithm.name, algorithm.cuts) == (spec, [2, 3, 7])
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
