"""Perturbed activities of a pipeline with an exact end, against autograd."""

from __future__ import annotations

import copy
import math
from functools import partial
from itertools import islice

import pytest
import torch
from tests.algorithms.contract import assert_same
from tests.support.algorithm_examples import Example, points, vectors
from tests.support.pipeline_examples import layers, opened, separate_layers, trained
from torch import Tensor, nn
from torch.func import functional_call

from wattune.algorithms import open_algorithm
from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.alpha import Alpha
from wattune.algorithms.forward.blocks import PerturbedBlock, along, blocks_of
from wattune.algorithms.forward.forward_gradient import Estimate
from wattune.algorithms.forward.masks import RandomKey

LOSS = points()


def model(*, dropout: float = 0.0) -> nn.Sequential:
    """Two equal blocks of a perceptron, and a third with the head as the last module."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        blocks = [
            part
            for _ in range(3)
            for part in (nn.Linear(12, 12), nn.LayerNorm(12), nn.ReLU(inplace=True), nn.Dropout(dropout))
        ]
        return nn.Sequential(*blocks, nn.Linear(12, 4)).double()


def batch() -> tuple[Tensor, Tensor]:
    x, y = vectors()(8, torch.Generator().manual_seed(2))
    return x.double(), y


def flat(module: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])


def estimates(net: nn.Sequential, directions: int, count: int) -> tuple[Tensor, Tensor]:
    """As many estimates of the gradient (count, P), and autograd's with the same dropout masks (P,)."""
    x, y = batch()
    how = Estimate("activities", directions, ends=(4, 8, 13))
    stages, samples = how.stages(net, 8), []
    for i in range(count):
        net.zero_grad()
        with how.running():
            how.add(stages, LOSS, (x, y), RandomKey(i, 0))
        samples.append(flat(net))
    net.zero_grad()
    LOSS.loss(net(x), y).backward()
    return torch.stack(samples), flat(net)


@pytest.mark.parametrize("directions", [pytest.param(1, marks=pytest.mark.slow), 4])
def test_estimates_are_unbiased_and_the_end_is_exact(directions: int) -> None:
    net = model()
    samples, g = estimates(net, directions, 500 // directions)
    last = sum(p.numel() for p in net[8:].parameters())
    torch.testing.assert_close(samples[:, -last:], g[-last:].expand(len(samples), -1))
    for first, size in ((0, 180), (180, 180)):  # each of the two equal blocks
        own = g[first : first + size]
        along = samples[:, first : first + size] @ own / own.square().sum()
        assert abs(along.mean() - 1) <= 4 * along.std() / math.sqrt(len(along)) <= 0.5
        assert along.std() > 0


def test_closed_units_are_not_perturbed() -> None:
    """Nor dropped ones, which are the same for each direction."""
    net, (x, _) = model(dropout=0.4), batch()
    with forward_ad.level():
        output, tangents = PerturbedBlock([*net[:4]], Alpha(net, 8), 3).dual(x, None, RandomKey(0, 0))
    assert tangents is not None
    closed = output == 0
    assert 0.2 < closed.float().mean() < 0.9
    for tangent in tangents:
        assert not tangent[closed].any()
        assert bool((tangent[~closed] != 0).all())


def test_an_output_of_zeros_without_a_rectifier_is_perturbed() -> None:
    """A layer that begins at zero has a gradient."""
    layer = nn.Linear(12, 3)
    nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
    with forward_ad.level():
        output, tangents = PerturbedBlock([layer], Alpha(layer, 8)).dual(torch.ones(2, 12), None, RandomKey(0, 0))
    assert not output.any()
    assert tangents is not None
    assert bool((tangents[0] != 0).all())


def test_a_block_ends_after_its_activation() -> None:
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(12, 8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 8), nn.Linear(8, 4)
    )
    assert [len(group) for group in blocks_of(list(net))] == [5, 1, 1]
    assert opened(separate_layers(), "modules=4,perturb=activities").cuts == [4, 8, 12, 17]


def test_one_module_is_backprop() -> None:
    ours, steps = trained(layers(), "modules=1,perturb=activities", 5)
    plain = open_algorithm("backprop", layers(), 8)
    others = list(plain.run(islice(layers().batches(8), 5)))
    assert [step.loss for step in steps] == pytest.approx([step.loss for step in others])
    assert_same(ours.module.state_dict(), plain.module.state_dict())


def test_the_last_module_is_the_head_of_the_schedule() -> None:
    """Alpha 0 freezes what is below it, and it learns as by backprop of the last parts."""
    ours, _ = trained(layers(), "cuts=4,perturb=activities,alpha=0", 5)
    plain = open_algorithm("backprop:last=2", layers(), 8)
    list(plain.run(islice(layers().batches(8), 5)))
    found, wanted = ours.module.state_dict(), plain.module.state_dict()
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name])


def test_the_pipeline_is_its_plain_description() -> None:
    """All versions of all parameters kept, each module at its own, and ``torch.func.jvp`` for each direction alone."""
    trainable, rate, directions = layers(optimizer=lambda p: torch.optim.SGD(p, lr=0.05)), 0.05, 2
    with forward_ad.level():
        pass  # the first one of a process makes PyTorch warn
    net = trainable.model(0)
    modules = [net[:2], net[2:4], net[4:]]  # type: ignore[index]
    versions = [[{n: p.detach() for n, p in module.named_parameters()} for module in modules]]
    losses = []
    for b, (x, y) in enumerate(islice(trainable.batches(8), 7)):
        past = [{n: p.clone().requires_grad_() for n, p in versions[max(0, b - 2 + k)][k].items()} for k in range(3)]
        first, second, last = (partial(functional_call, m, p) for m, p in zip(modules, past, strict=True))

        def noise(k: int, like: Tensor, step: int = b) -> list[Tensor]:
            keys = [RandomKey(0, step, k, j).generator(like.device) for j in range(directions)]
            return [torch.empty_like(like).normal_(generator=key) for key in keys]

        z = first(x)
        u = noise(0, z.detach())
        h = second(z.detach())
        w = noise(1, h.detach())
        leaf = h.detach().requires_grad_()
        loss = trainable.loss(last(leaf), y)
        *exact, slope = torch.autograd.grad(loss, [*past[2].values(), leaf])
        v, c = torch.zeros_like(z), torch.zeros_like(h)
        for uj, wj in zip(u, w, strict=True):
            moved = torch.func.jvp(second, (z.detach(),), (uj,))[1] + wj
            s = (slope * moved).sum(1, keepdim=True)  # n dL/dx . dx, and 1/n of it
            v, c = v + s * uj / directions, c + s * wj / directions
        gradients = [
            torch.autograd.grad(z, [*past[0].values()], v),
            torch.autograd.grad(h, [*past[1].values()], c),
            exact,
        ]
        versions.append(
            [
                {n: (p - rate * g).detach() for (n, p), g in zip(now.items(), gradient, strict=True)}
                for now, gradient in zip(versions[b], gradients, strict=True)
            ]
        )
        losses.append(loss.item())
    ours, steps = trained(trainable, f"cuts=2/4,perturb=activities,directions={directions}", 7)
    assert [step.loss for step in steps] == pytest.approx(losses, rel=1e-4)
    found = ours.module.state_dict()
    for name, value in {name: value for own in versions[-1] for name, value in own.items()}.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)


def test_both_passes_have_the_same_masks() -> None:
    net = nn.Sequential(nn.Linear(12, 64), nn.Dropout(0.5))
    x, _ = vectors()(1, torch.Generator().manual_seed(0))
    perturbed = PerturbedBlock([*net], Alpha(net, 1), 1)
    seen: list[Tensor] = []
    net[1].register_forward_hook(lambda _, __, output: seen.append(output.detach() == 0))
    with forward_ad.level():
        perturbed.dual(x, None, RandomKey(0, 0))
        perturbed.add_gradient(x, torch.ones(1, 1), RandomKey(0, 0))
    first, second = seen
    assert torch.equal(first, second)
    assert 0.2 < first.float().mean() < 0.8


# --------------------------------------------------------------------------------- layers, frozen blocks, shares


RULES = {
    "linear": (nn.Linear(6, 3), (5, 4, 6)),
    "without bias": (nn.Linear(6, 3, bias=False), (5, 4, 6)),
    "convolution": (nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (5, 4, 6, 6)),
    "mirrored convolution": (nn.Conv1d(4, 6, 3, padding=1, padding_mode="reflect"), (5, 4, 6)),
}


@pytest.mark.parametrize("name", RULES)
def test_a_layer_with_a_rule_has_the_tangents_of_torch_func(name: str) -> None:
    layer, shape = RULES[name]
    draws = torch.Generator().manual_seed(5)
    layer = copy.deepcopy(layer).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, generator=draws)
    x = 3 * torch.randn(shape, generator=draws, dtype=torch.float64) + 1
    directions = [torch.randn(shape, generator=draws, dtype=torch.float64) for _ in range(2)]
    tangents = list(directions)
    with forward_ad.level():
        pass  # the first one of a process makes PyTorch warn
    with torch.no_grad():
        output = along(layer, x, tangents)
        for direction, tangent in zip(directions, tangents, strict=True):
            wanted, moved = torch.func.jvp(layer, (x,), (direction,))
            torch.testing.assert_close(output, wanted)
            torch.testing.assert_close(tangent, moved)


def test_the_exact_end_has_its_share_of_uneven_micro_batches() -> None:
    trainable = points(optimizer=lambda p: torch.optim.SGD(p, lr=0.0))
    (batch,) = islice(trainable.batches(8), 1)
    ends = []
    for spec in ("forward-gradient:perturb=activities", "backprop"):
        algorithm = open_algorithm(spec, trainable, 8, micro_batch_size=3)  # 3, 3 and 2 samples
        (step,) = algorithm.run([batch])
        assert step.samples == 8
        ends.append([p.grad for p in list(algorithm.module.parameters())[-2:]])
    torch.testing.assert_close(*ends)


class Added(nn.Module):
    """A weight that is the sum of two parameters, which have one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.change = (nn.Parameter(torch.randn(12, 12)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.base + self.change)


def test_parameters_with_one_gradient_get_it_once_in_each_micro_batch() -> None:
    trainable = Example(lambda: nn.Sequential(Added(), nn.Linear(12, 4)), vectors())
    x, y = next(trainable.batches(8))
    gradients = []
    for spec in ("Added", "Linear"):
        net = trainable.model(0)
        if spec == "Linear":
            net[0] = nn.Linear(12, 12, bias=False)  # type: ignore[index]
            net[0].weight.data = sum(trainable.model(0)[0].parameters()).detach()  # type: ignore[index, union-attr]
        how = Estimate("activities")
        stages = how.stages(net, 8)
        with how.running():
            for part in range(2):
                how.add(stages, LOSS, (x[part::2], y[part::2]), RandomKey(0, 0, part=part), 0.5)
        gradients.append(next(net.parameters()).grad)
    torch.testing.assert_close(*gradients)


def test_a_frozen_block_in_front_draws_no_direction_in_either_pass() -> None:
    """Else the second pass would go along other directions than the first."""
    frozen, learning = nn.Linear(12, 6).requires_grad_(False), nn.Linear(6, 5)
    net = nn.Sequential(frozen, nn.Tanh(), learning).double()
    alpha, key, (x, _) = Alpha(net, 8), RandomKey(3, 1), batch()
    first, perturbed = PerturbedBlock([*net[:2]], alpha, 2), PerturbedBlock([learning], alpha, 2, index=1)
    derivatives = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with forward_ad.level():
        _, directions = perturbed.dual(*first.dual(x, None, key), key)
        perturbed.add_gradient(first.add_gradient(x, derivatives, key), derivatives, key)
    assert directions is not None
    wanted = sum(s[:, None] * u for s, u in zip(derivatives, directions, strict=True)) / (8 * 2)
    torch.testing.assert_close(learning.bias.grad, wanted.sum(0))
