from __future__ import annotations

import math
from itertools import islice
from typing import Any

import pytest
import torch
from benchmarks.asyncfgd.memory_probe import measure
from tests.algorithms.contract import TrainingAlgorithmContract
from tests.support import training_runs as made
from tests.support.algorithm_examples import Example, points, vectors
from tests.support.pipeline_examples import noisy_layers
from torch import Tensor, nn

from wattune.algorithms import load_checkpoint, open_algorithm
from wattune.errors import InputError, WorkloadError
from wattune.training import train


class ForwardGradientContract(TrainingAlgorithmContract):
    learning_steps = 600

    @pytest.mark.slow
    def test_the_loss_falls(self) -> None:
        _, steps = self.steps(points(), self.learning_steps, batch_size=16)
        losses = [s.loss for s in steps]
        assert sum(losses[-50:]) < 0.7 * sum(losses[:50])


class TestWeights(ForwardGradientContract):
    spec = "forward-gradient"


@pytest.mark.slow
class TestSeveralDirections(ForwardGradientContract):
    spec = "forward-gradient:directions=3"


@pytest.mark.slow
class TestDifferences(ForwardGradientContract):
    spec = "forward-gradient:perturb=differences"


class TestActivities(ForwardGradientContract):
    spec = "forward-gradient:perturb=activities"
    learning_steps = 200

    def noisy(self) -> Example:
        """Without batch normalisation, through which examples see each other."""
        return Example(
            lambda: nn.Sequential(nn.Linear(12, 20), nn.LayerNorm(20), nn.ReLU(), nn.Dropout(0.3), nn.Linear(20, 4)),
            vectors(),
        )


@pytest.mark.parametrize("perturb", ["weights", "activities", "differences"])
def test_micro_batches_have_different_directions(perturb):
    trainable = points(optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    (x, y) = next(trainable.batches(8))
    results = []
    for micro in (8, 3):
        algorithm = open_algorithm(f"forward-gradient:perturb={perturb}", trainable, 8, micro_batch_size=micro)
        (step,) = algorithm.run([(x, y)])
        results.append((step, [p.grad.clone() for p in algorithm.module.parameters()]))
    (whole, one), (parts, other) = results
    assert (whole.samples, parts.samples) == (8, 8)
    assert whole.loss == pytest.approx(parts.loss, rel=1e-4)
    assert not torch.allclose(one[0], other[0])


def test_the_name_has_the_given_options():
    spec = "forward-gradient:epoch_samples=3,directions=2,alpha=0.15,perturb=activities"
    algorithm = open_algorithm(spec, points(), 8)
    assert algorithm.name == "forward-gradient:alpha=0.15,directions=2,epoch_samples=3,perturb=activities"
    assert open_algorithm(algorithm.name, points(), 8).name == algorithm.name
    assert open_algorithm("forward-gradient", points(), 8).name == "forward-gradient"


@pytest.mark.parametrize("data_type", ["fp16", "bf16"])
def test_low_precision_is_refused(data_type):
    with pytest.raises(InputError, match=f"data type of forward gradients: {data_type}; allowed: fp32, tf32"):
        open_algorithm("forward-gradient", points(data_type=data_type), 8)


class Distances(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cdist(x, torch.eye(4))


@pytest.mark.parametrize("perturb", ["weights", "activities"])
def test_an_operation_without_a_forward_derivative_is_named_before_training(perturb):
    layers = nn.Linear(12, 4), nn.Linear(4, 4), Distances(), nn.Linear(4, 4)
    trainable = Example(lambda: nn.Sequential(*layers), vectors())
    with pytest.raises(WorkloadError, match="without a forward derivative: _cdist_forward; train with backprop"):
        open_algorithm(f"forward-gradient:perturb={perturb}", trainable, 8)
    open_algorithm("forward-gradient:perturb=differences", trainable, 8)


def test_batch_normalisation_with_activities_is_refused_before_training():
    with pytest.raises(InputError, match="examples interact: batch normalisation"):
        open_algorithm("forward-gradient:perturb=activities", noisy_layers(), 8)


def test_a_loss_that_is_not_a_number_changes_no_parameter():
    for spec in ("forward-gradient", "forward-gradient:perturb=activities", "forward-gradient:perturb=differences"):
        trainable = points()
        algorithm = open_algorithm(spec, trainable, 8)
        before = {k: v.clone() for k, v in algorithm.module.state_dict().items()}
        x, y = next(trainable.batches(8))
        (step,) = algorithm.run([(x.clone().fill_(math.inf), y)])
        assert math.isnan(step.loss)
        assert all(torch.equal(v, before[k]) for k, v in algorithm.module.state_dict().items())


def test_a_derivative_that_is_not_finite_changes_no_parameter():
    class Root(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 0).sqrt() + x  # the root's slope at 0

    trainable = Example(lambda: nn.Sequential(nn.Linear(12, 4), Root()), vectors())
    algorithm = open_algorithm("forward-gradient", trainable, 8)
    before = algorithm.module[0].weight.clone()
    (step,) = algorithm.run(islice(trainable.batches(8), 1))
    assert math.isnan(step.loss)
    assert torch.equal(algorithm.module[0].weight, before)


@pytest.mark.slow
def test_a_diverged_run_keeps_the_last_good_checkpoint(tmp_path):
    def data() -> Any:
        points = made.points()
        points.train[0][7] = math.nan
        return points

    workload = made.workload(data=data, target=None, batch_sizes=(8,))
    plan = made.plan().model_copy(update={"algorithm": "forward-gradient"})
    record = train(made.nano(), workload, plan, checkpoint=tmp_path / "kept", seed=1)
    assert record.ended == "diverged"
    assert record.evaluations
    assert record.provenance.kind == "simulated"
    state, extra = load_checkpoint(tmp_path / "kept")
    assert extra["so_far"]["samples"] == record.evaluations[-1].samples
    assert all(torch.isfinite(v).all() for v in state["module"].values())


# --------------------------------------------------------------------------------------------- what a step asks for


def matmul(work: Any, kind: str = "matmul") -> float:
    return sum(o.flops for p in work.phases for o in p.operations if o.kind == kind)


def test_the_work_of_a_perceptron_in_products():
    first, last = 2 * 8 * 12 * 20, 2 * 8 * 20 * 4
    work = {
        perturb: matmul(open_algorithm(f"forward-gradient:perturb={perturb}", points(), 8).work())
        for perturb in ("weights", "activities", "differences")
    }
    # The batch has no tangent, for which forward mode multiplies zeros.
    assert work["weights"] == 3 * (first + last)
    # The output; backpropagation of the last layer; the output of the first one again; its weights' gradients.
    assert work["activities"] == (first + last) + 2 * last + first + first
    assert work["differences"] == 2 * (first + last)


def test_a_frozen_beginning_costs_one_plain_forward_pass():
    first, last = 2 * 8 * 12 * 20, 2 * 8 * 20 * 4
    head = open_algorithm("forward-gradient:alpha=0", points(), 8).work()
    assert matmul(head) == first + 3 * last
    later = open_algorithm("forward-gradient:alpha=0,epoch_samples=100", points(), 8).work()
    assert matmul(later) == first + 3 * last
    risen = open_algorithm("forward-gradient:alpha=0.15,epoch_samples=100", points(), 8).work()
    assert matmul(risen) == 3 * (first + last)


def test_several_directions_cost_as_many_passes():
    one, three = (open_algorithm(f"forward-gradient:directions={m}", points(), 8).work() for m in (1, 3))
    assert matmul(three) == 3 * matmul(one)
    assert three.peak_memory_bytes < 1.3 * one.peak_memory_bytes


@pytest.mark.slow
def test_peak_memory_in_a_process_of_its_own():
    """A CNN of 8 channels on 32x32 images in batches of 16, at depth 64."""
    deep = {
        name: measure(name, "CNN, 64 layers", 16)["peak_mb"]
        for name in ("backprop", "backprop:checkpoint=8", "forward-gradient", "forward-gradient:perturb=activities")
    }
    flat = measure("forward-gradient", "CNN, 4 layers", 16)["peak_mb"]
    assert deep["forward-gradient"] <= 1.5 * flat
    assert deep["forward-gradient"] <= 0.2 * deep["backprop"]
    assert deep["forward-gradient"] <= 0.45 * deep["backprop:checkpoint=8"]
    assert deep["forward-gradient:perturb=activities"] <= 0.2 * deep["backprop"]
