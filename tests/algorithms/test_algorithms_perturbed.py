"""Directional derivatives and the estimates made of them, against autograd."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from tests.support.algorithm_examples import images, perceptron, points, texts, vectors
from torch import Tensor, nn
from torch.nn import functional as F

from wattune.algorithms.forward import forward_ad
from wattune.algorithms.forward.alpha import Alpha
from wattune.algorithms.forward.forward_gradient import Estimate
from wattune.algorithms.forward.masks import RandomKey, copied_buffers
from wattune.algorithms.forward.perturbed import Differences, Perturbed
from wattune.workloads.models import CharacterTransformer, Embedded, small_cnn

LOSS = points()
"""Its loss is the cross-entropy of any model here."""


def encoder() -> nn.Module:
    """PyTorch's own transformer layer: fused attention, dropout."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.Embedding(11, 8), layer, nn.Linear(8, 11))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., Any]]] = {
    "small perceptron": (lambda: nn.Sequential(nn.Linear(12, 4), nn.Tanh(), nn.Linear(4, 4)), vectors()),
    "perceptron": (lambda: perceptron(dropout=0.3), vectors()),
    "normalised convolutions": (
        lambda: nn.Sequential(
            nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.ReLU()),
            nn.Conv2d(4, 4, 3),
            nn.Flatten(),
            nn.Linear(4, 4),
            nn.LayerNorm(4),
        ),
        images(size=8, classes=4),
    ),
    "convolutions with batch normalisation": (lambda: small_cnn(width=4), images(size=16)),
    "character transformer": (
        lambda: CharacterTransformer(vocabulary=11, length=6, layers=2, heads=2, width=8),
        texts(6, 11),
    ),
    "transformer of PyTorch": (encoder, texts(6, 11)),
}
"""Models whose examples do not see each other; those of text are slow, for an estimate is averaged over hundreds."""


class Tied(nn.Module):
    """One matrix both reads the characters and writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.fc = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.fc.weight = self.token.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.token(x).tanh())


class Beside(nn.Module):
    """A layer's weight is used beside the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.last = nn.Linear(12, 12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.linear(self.fc(x).tanh(), self.fc.weight))


MODELS["tied"] = Tied, texts(6, 11)
MODELS["a weight beside its layer"] = Beside, vectors()


def made(name: str, dtype: torch.dtype = torch.float64, samples: int = 5) -> tuple[nn.Module, Any, Tensor]:
    build, draw = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = build().to(dtype)
    x, y = draw(samples, torch.Generator().manual_seed(2))
    return model, x.to(dtype) if x.is_floating_point() else x, y


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def gradient(model: nn.Module, x: Any, y: Tensor, key: RandomKey) -> tuple[Tensor, Tensor]:
    """The loss and what autograd says its gradient is, with the masks that the key gives."""
    model.zero_grad()
    perturbed = Perturbed(model, Alpha(model, 1))
    with perturbed.masks(x, key), torch.enable_grad():
        loss = LOSS.loss(torch.func.functional_call(model, copied_buffers(model), (x,)), y)
    loss.backward()
    gradient = flat(model)
    model.zero_grad()
    return loss.detach(), gradient


def loss_along(output: Tensor, tangent: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    loss, derivative = forward_ad.unpacked(LOSS.loss(forward_ad.dual(output, tangent), y))
    assert derivative is not None
    return loss, derivative


def direction(perturbed: Perturbed, x: Any, key: RandomKey) -> Tensor:
    """The direction itself: the estimate of a derivative of 1."""
    perturbed.module.zero_grad()
    perturbed.add_gradient(x, torch.ones(()), key)
    gradient = flat(perturbed.module)
    perturbed.module.zero_grad()
    return gradient


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("name", MODELS)
def test_the_derivative_is_that_along_the_direction(name, dtype, bound):
    model, x, y = made(name, dtype)
    perturbed = Perturbed(model, Alpha(model, 1))
    for step in range(3):
        key = RandomKey(4, step)
        loss, g = gradient(model, x, y, key)
        u = direction(perturbed, x, key)
        with forward_ad.level():
            output, tangent = perturbed.dual(x, None, key)
            primal, derivative = loss_along(output, tangent, y)
        assert primal.item() == pytest.approx(loss.item(), rel=bound)
        assert abs(derivative - g @ u) <= bound * max(abs(g @ u), g.norm())
        assert u.var().item() == pytest.approx(1, abs=6 * math.sqrt(2 / len(u)))


def estimates(model: nn.Module, x: Any, y: Tensor, how: Estimate, count: int) -> Tensor:
    """(count, P): as many estimates of the gradient."""
    stages, samples = how.stages(model, 1), []
    with how.running():
        for i in range(count):
            model.zero_grad()
            how.add(stages, LOSS, (x, y), RandomKey(7 + i, 0))
            samples.append(flat(model))
    return torch.stack(samples)


@pytest.mark.slow
@pytest.mark.parametrize(("directions", "count"), [(1, 1500), (4, 400), (16, 150)])
def test_the_variance_is_p_plus_1_over_the_number_of_directions(directions, count):
    model, x, y = made("small perceptron", samples=16)
    _, g = gradient(model, x, y, RandomKey(7, 0))
    samples = estimates(model, x, y, Estimate(directions=directions), count)
    variance = (samples - g).square().sum(1).mean() / g.square().sum()
    assert float(variance) == pytest.approx((len(g) + 1) / directions, rel=0.1)


@pytest.mark.slow
def test_activities_of_a_batch_as_long_as_a_text():
    """The embedding of places is (length, width): no row of it is an example, though there are as many."""
    model = nn.Sequential(Embedded(nn.Embedding(5, 4), nn.Embedding(6, 4)), nn.Linear(4, 5)).double()
    x, y = texts(6, 5)(6, torch.Generator().manual_seed(0))
    _, g = gradient(model, x, y, RandomKey(7, 0))
    samples = estimates(model, x, y, Estimate("activities"), 500)
    start = 0
    for name, p in model.named_parameters():
        part = slice(start, start + p.numel())
        along = samples[:, part] @ g[part] / g[part].square().sum()
        assert abs(along.mean() - 1) <= 4 * along.std() / math.sqrt(500) + 1e-9, name  # the last block's is exact
        start += p.numel()
    along = samples @ g / g.square().sum()
    assert abs(along.mean() - 1) <= 4 * along.std() / math.sqrt(500) <= 0.7
    assert along.std() > 0


@pytest.mark.parametrize("name", ["perceptron", "character transformer"])
def test_a_central_difference_is_the_derivative(name):
    model, x, y = made(name)
    perturbed = Differences(model, Alpha(model, 1), 1e-5)
    key = RandomKey(1, 2)
    _, g = gradient(model, x, y, key)
    u = direction(perturbed, x, key)
    with torch.no_grad():
        _, derivative = perturbed.loss_along(x, None, lambda output: LOSS.loss(output, y), key)
    assert derivative.item() == pytest.approx((g @ u).item(), rel=1e-6)


@pytest.mark.parametrize("perturb", ["weights", "activities"])
def test_no_tape_is_recorded(perturb):
    model, x, y = made("perceptron")
    how = Estimate(perturb)
    with how.running():
        loss, derivative = how.add(how.stages(model, 1), LOSS, (x, y), RandomKey(0, 0))
    tensors = [loss, derivative, *(p.grad for p in model.parameters())]
    assert not any(t.requires_grad for t in tensors)
    assert all(p.requires_grad for p in model.parameters())


def normalised(perturb: str) -> nn.Sequential:
    """Linear layers with batch normalisation between them; before them and frozen, where examples must not see each
    other behind a perturbed one."""
    if perturb != "activities":
        return nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12), nn.Linear(12, 4))
    frozen = nn.Sequential(nn.Linear(12, 12), nn.BatchNorm1d(12)).requires_grad_(False)
    return nn.Sequential(*frozen, nn.Linear(12, 4))


@pytest.mark.parametrize("perturb", ["weights", "activities", "differences"])
def test_buffers_are_updated_once_a_batch(perturb):
    model = normalised(perturb)
    x, y = vectors()(16, torch.Generator().manual_seed(0))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    how = Estimate(perturb, directions=3, distance=1e-6)
    stages = how.stages(model, 16)
    with how.running():
        how.add(stages, LOSS, (x, y), RandomKey(0, 0))
    assert int(model[1].num_batches_tracked) == 1
    mean = 0.9 * before["1.running_mean"] + 0.1 * F.linear(x, before["0.weight"], before["0.bias"]).mean(0)
    torch.testing.assert_close(model[1].running_mean, mean)
    assert forward_ad.unpacked(model[1].running_mean)[1] is None
    assert any(p.grad is not None for p in model.parameters())
    with how.running():
        how.add(stages, LOSS, (x, y), RandomKey(0, 1))
    assert int(model[1].num_batches_tracked) == 2


def test_a_model_that_overwrites_its_input_leaves_the_batch_as_it_is():
    model = nn.Sequential(nn.Hardswish(inplace=True), nn.Linear(12, 4))
    x, y = vectors()(8, torch.Generator().manual_seed(0))
    before = x.clone()
    for perturb in ("weights", "activities"):
        how = Estimate(perturb, directions=2)
        with how.running():
            how.add(how.stages(model, 8), LOSS, (x, y), RandomKey(0, 0))
        assert torch.equal(x, before)


# ---------------------------------------------------------------------------------------------------- random numbers


def test_random_numbers_differ_in_each_field_of_their_key_and_in_their_purpose():
    key = RandomKey(1, 2, 3, 4)
    keys = [key, *(key._replace(**{field: 9}) for field in RandomKey._fields)]
    assert len({k.number(purpose) for k in keys for purpose in range(2)}) == 12
    drawn = [torch.randn(3, generator=k.generator(torch.device("cpu"))) for k in keys]
    assert len({tuple(values.tolist()) for values in drawn}) == 6


def drawn(module: nn.Module, key: RandomKey) -> Tensor:
    with torch.no_grad():
        return Perturbed(module, Alpha(module, 1)).output(torch.ones(50, 40), key)


def test_concurrent_passes_draw_the_same_masks_as_alone():
    module = nn.Sequential(*(nn.Dropout(0.1) for _ in range(20)))
    keys = [RandomKey(seed, step) for seed in range(4) for step in range(20)]
    alone = [drawn(module, key) for key in keys]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda key: drawn(module, key), keys))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    assert not torch.equal(alone[0], alone[1])


class Noise(nn.Module):
    """Random numbers of any kind."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand_like(x) + torch.randn(40)


@pytest.mark.parametrize("module", [nn.Dropout(0.3), nn.AlphaDropout(0.3), nn.Dropout1d(0.3), Noise()])
def test_whatever_a_module_draws_follows_from_the_key(module):
    state, stage = torch.get_rng_state(), Perturbed(module, Alpha(module, 1))
    one, again, other = (stage.output(torch.ones(50, 40), RandomKey(seed, 0)) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)
