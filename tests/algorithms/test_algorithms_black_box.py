"""Losses that can only be evaluated: trained by central differences, and refused where a gradient is needed."""

from __future__ import annotations

import copy
from itertools import islice

import numpy
import pytest
import torch
from tests.support.algorithm_examples import Example, points, vectors
from torch import nn
from torch.nn import functional as F

from wattune.algorithms import open_algorithm
from wattune.errors import WorkloadError

DIFFERENCES = "forward-gradient:perturb=differences"


def number(output, target):
    """A Python number."""
    return float(F.cross_entropy(output.detach(), target))


def by_numpy(output, target):
    """A number that NumPy computes of the output."""
    return float(((output.numpy() - F.one_hot(target, output.shape[1]).numpy()) ** 2).mean())


def detached(output, target):
    """A tensor that does not follow from the output."""
    return F.cross_entropy(output.detach(), target)


def squares(output, target):
    """A quadratic function of the output."""
    return ((output - F.one_hot(target, output.shape[1])) ** 2).mean()


def with_loss(loss, trainable=None):
    trainable = points() if trainable is None else trainable
    trainable.loss = loss
    return trainable


def trained(spec, trainable, steps=20):
    """The weights after some steps, and the losses."""
    algorithm = open_algorithm(spec, trainable, 8, seed=3)
    losses = [step.loss for step in algorithm.run(islice(trainable.batches(8), steps))]
    return torch.cat([p.detach().flatten() for p in algorithm.module.parameters()]), losses


@pytest.mark.parametrize("loss", [number, detached])
def test_a_loss_without_a_gradient_trains_as_the_same_one_with_it(loss):
    weights, losses = trained(DIFFERENCES, with_loss(loss))
    same, same_losses = trained(DIFFERENCES, points())
    assert losses == pytest.approx(same_losses, rel=1e-4)
    assert weights == pytest.approx(same, abs=5e-3)


def in_doubles(*layers, rate=0.01):
    def draw(n, generator):
        x, y = vectors()(n, generator)
        return x.double(), y

    return Example(
        lambda: nn.Sequential(*copy.deepcopy(layers)).double(), draw, optimizer=lambda p: torch.optim.SGD(p, lr=rate)
    )


def test_the_difference_of_a_quadratic_loss_is_its_derivative():
    layer = nn.Linear(12, 4)
    black_box = with_loss(lambda output, target: float(squares(output, target)), in_doubles(layer))
    exact, _ = trained("forward-gradient", with_loss(squares, in_doubles(layer)))
    weights, _ = trained(DIFFERENCES, black_box)
    assert weights == pytest.approx(exact, abs=1e-7)


@pytest.mark.parametrize("backend", ["sequential", "threads"])
def test_a_pipeline_learns_by_differences_as_by_derivatives(backend):
    """Each module with parameters as old, and the values of both sides instead of tangents."""
    layers = nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)
    begun, _ = trained("async-fgd:modules=3,perturb=weights", with_loss(squares, in_doubles(*layers)), steps=0)
    exact, losses = trained("async-fgd:modules=3,perturb=weights", with_loss(squares, in_doubles(*layers)))
    weights, others = trained(
        f"async-fgd:modules=3,perturb=differences,distance=1e-5,backend={backend}",
        with_loss(lambda output, target: float(squares(output, target)), in_doubles(*layers)),
    )
    assert others == pytest.approx(losses, rel=1e-6)
    assert weights == pytest.approx(exact, abs=1e-6)
    assert (exact - begun).abs().max() > 1e-2


class Engine(nn.Module):
    """A frozen engine in NumPy, without a backward pass."""

    def forward(self, x):
        return torch.from_numpy(numpy.tanh(x.numpy()))


def engines(**options):
    """Three engines with a small layer behind each, the last of which is the head."""
    layers = [part for width in (12, 12, 4) for part in (Engine(), nn.Linear(12, width))]
    return Example(lambda: nn.Sequential(*copy.deepcopy(layers)), vectors(), **options)


@pytest.mark.parametrize("backend", ["sequential", "threads"])
@pytest.mark.parametrize("alpha", [0, 1])
def test_behind_engines_the_last_module_has_its_exact_gradient(backend, alpha):
    """It begins behind the last engine, wherever the costs would cut."""
    trainable = engines(optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    spec = f"async-fgd:modules=3,perturb=differences,alpha={alpha},backend={backend}"
    algorithm = open_algorithm(spec, trainable, 8)
    begun = copy.deepcopy(algorithm.module)
    (x, y) = next(trainable.batches(8))
    (step,) = algorithm.run([(x, y)])
    assert algorithm.cuts[-2:] == [5, 6]
    with torch.no_grad():
        reached = begun[:5](x)
    loss = trainable.loss(begun[5](reached), y)
    loss.backward()
    assert step.loss == pytest.approx(loss.item(), rel=1e-4)
    wanted = begun[5].weight - 0.1 * begun[5].weight.grad
    torch.testing.assert_close(algorithm.module[5].weight, wanted, rtol=1e-4, atol=1e-5)
    assert torch.equal(algorithm.module[1].weight, begun[1].weight) == (alpha == 0)


@pytest.mark.parametrize("backend", ["sequential", "threads"])
def test_a_last_module_with_an_engine_learns_by_differences(backend):
    trainable = engines()
    algorithm = open_algorithm(f"async-fgd:cuts=1/2,perturb=differences,backend={backend}", trainable, 8)
    begun = copy.deepcopy(algorithm.module.state_dict())
    assert len(list(algorithm.run(islice(trainable.batches(8), 3)))) == 3
    assert all(not torch.equal(value, begun[name]) for name, value in algorithm.module.state_dict().items())


@pytest.mark.parametrize("spec", ["forward-gradient:perturb=weights", "async-fgd:modules=2,perturb=weights"])
def test_weights_below_an_engine_are_not_trained_on_noise(spec):
    with pytest.raises(WorkloadError, match=r"without a forward derivative: a layer above 1\.weight; train with back"):
        open_algorithm(spec, engines(), 8)


def test_the_derivative_before_an_exact_end_is_that_of_differences_alone():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)
    spec, gradients = "async-fgd:cuts=4,perturb=differences,distance=1e-4", []
    for loss in (squares, lambda output, target: float(squares(output, target))):
        trainable = with_loss(loss, in_doubles(*layers))
        algorithm = open_algorithm(spec, trainable, 8)
        list(algorithm.run(islice(trainable.batches(8), 1)))
        gradients.append({name: p.grad for name, p in algorithm.module.named_parameters()})
    exact, alone = gradients
    # One derivative is along the directions of both modules, the other along the first one's.
    assert torch.cosine_similarity(exact["0.weight"].flatten(), alone["0.weight"].flatten(), dim=0).abs() > 1 - 1e-9
    weights, x = in_doubles(*layers).model(0), next(in_doubles(*layers).batches(8))
    squares(weights(x[0]), x[1]).backward()
    torch.testing.assert_close(exact["4.weight"], weights[4].weight.grad, rtol=1e-3, atol=1e-6)


def test_its_work_is_that_of_the_same_loss_with_a_gradient():
    black_box, plain = (open_algorithm(DIFFERENCES, one, 8) for one in (with_loss(number), points()))
    assert black_box.work().flops == pytest.approx(plain.work().flops, rel=0.05)
    assert black_box.evaluation_work(8) == plain.evaluation_work(8)


@pytest.mark.parametrize("loss", [number, by_numpy, detached])
@pytest.mark.parametrize(
    "spec",
    [
        "backprop",
        "backprop:last=1",
        "backprop:checkpoint=2",
        "forward-gradient",
        "forward-gradient:perturb=activities",
        "async-fgd:modules=2,perturb=weights",
        "async-fgd:modules=2,perturb=activities",
    ],
)
def test_an_algorithm_that_needs_a_gradient_refuses_it(spec, loss):
    with pytest.raises(WorkloadError, match=r"the loss has no gradient: .*perturb=differences") as raised:
        trained(spec, with_loss(loss), steps=1)
    assert "\n" not in str(raised.value)
