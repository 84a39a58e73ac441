"""The optimizer rule and its learning rates."""

import pytest
import torch
from torch import nn

from wattune.errors import InputError
from wattune.workloads import OptimizerRule


def test_square_root_scaling_gives_the_published_rates():
    # arXiv 2502.18323, section 5.1: 5e-4 at a batch size of 128, scaled by the square root
    rule = OptimizerRule("adam", learning_rate=5e-4, reference_batch_size=128, scaling="sqrt")
    published = {128: 5.00e-4, 64: 3.54e-4, 32: 2.50e-4, 16: 1.77e-4, 8: 1.25e-4, 4: 8.84e-5}
    assert {b: float(f"{rule.rate(b):.3g}") for b in published} == published


def test_linear_and_constant_learning_rates():
    assert OptimizerRule("sgd", 0.1, 32, "linear").rate(8) == pytest.approx(0.025)
    assert OptimizerRule("sgd", 0.1, 32, "none").rate(8) == 0.1


def test_the_optimizer_gets_trainable_parameters_only():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    optimizer = OptimizerRule("sgd", 0.1, 4, "linear", weight_decay=0.5, momentum=0.9)(model, 8)
    (group,) = optimizer.param_groups
    assert isinstance(optimizer, torch.optim.SGD)
    assert [id(p) for p in group["params"]] == [id(model.weight)]
    assert (group["lr"], group["weight_decay"], group["momentum"]) == (0.2, 0.5, 0.9)


def test_weight_decay_defaults_to_pytorchs():
    assert OptimizerRule("adamw")(nn.Linear(1, 1), 4).param_groups[0]["weight_decay"] == 0.01
    assert OptimizerRule("adam")(nn.Linear(1, 1), 4).param_groups[0]["weight_decay"] == 0


@pytest.mark.parametrize(
    "values",
    [
        {"name": "lion"},
        {"name": ["adam"]},
        {"scaling": "cubic"},
        {"learning_rate": 0},
        {"learning_rate": float("nan")},
        {"learning_rate": "1e-3"},
        {"reference_batch_size": 0},
        {"reference_batch_size": True},
        {"weight_decay": -1},
        {"name": "sgd", "momentum": 1},
        {"name": "adam", "momentum": 0.9},
    ],
)
def test_invalid_rules_are_refused(values):
    with pytest.raises(InputError) as caught:
        OptimizerRule(**values)
    assert "allowed" in str(caught.value)
