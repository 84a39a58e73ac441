"""A batch is divided only if the gradient of its parts is the gradient of the whole."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support import sessions
from tests.support.sessions import Numbered, perceptron
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from wattune.errors import InputError
from wattune.loop.division import BUCKETS, DivisionCheck, sketch

WEIGHTS = torch.tensor([1.0, 20.0])


def classes(model, batch, **options):
    return functional.cross_entropy(model(batch.x), batch.y, **options)


def scores(model, batch):
    """One number a sample, and what it should be."""
    return model(batch.x)[:, 0], batch.y.float()


def like_each_other(model, batch, temperature=0.1):
    out = functional.normalize(model(batch.x), dim=1)
    return out @ out.T / temperature


def noisy_steps(model, batch):
    """As diffusion has it: the order of two draws differs in parts."""
    scale = torch.rand(batch.samples, 1)
    return functional.cross_entropy(model(batch.x + scale * torch.randn_like(batch.x)), batch.y)


def penalty(model):
    return 1e-2 * sum(parameter.square().sum() for parameter in model.parameters())


def counted(batch):
    """Labels of which some do not count, as those of padding."""
    return batch.y.where(batch.x[:, 0] > 0, -100)


def clip(model, batch):
    """Pictures and texts, each the other's label."""
    one, other = (functional.normalize(part, dim=1) for part in (model(batch.x), model(-batch.x)))
    labels, like = torch.arange(batch.samples), one @ other.T / 0.1
    return (functional.cross_entropy(like, labels) + functional.cross_entropy(like.T, labels)) / 2


def focal(model, batch):
    """By the sum of its weights, as detectors have it."""
    each = classes(model, batch, reduction="none")
    weight = (1 - (-each).exp()) ** 2
    return (weight * each).sum() / weight.sum()


def hardest(model, batch):
    return classes(model, batch, reduction="none").topk(max(1, batch.samples // 4)).values.mean()


# The last six of either kind were written after the check and its tolerance.
MEANS = {
    "cross entropy": classes,
    "label smoothing": partial(classes, label_smoothing=0.1),
    "a penalty": lambda model, batch: classes(model, batch) + penalty(model),
    "squares": lambda model, batch: functional.mse_loss(*scores(model, batch)),
    "noise": lambda model, batch: functional.cross_entropy(
        model(batch.x) + 0.1 * torch.randn(batch.samples, 2), batch.y
    ),
    "absolute": lambda model, batch: functional.l1_loss(*scores(model, batch)),
    "Huber": lambda model, batch: functional.smooth_l1_loss(*scores(model, batch)),
    "logistic": lambda model, batch: functional.binary_cross_entropy_with_logits(*scores(model, batch)),
    "hinge": lambda model, batch: functional.multi_margin_loss(model(batch.x), batch.y),
    "Poisson": lambda model, batch: functional.poisson_nll_loss(*scores(model, batch)),
    "distillation": lambda model, batch: functional.kl_div(
        model(batch.x).log_softmax(1), batch.x[:, :2].softmax(1), reduction="batchmean"
    ),
    "cosine": lambda model, batch: functional.cosine_embedding_loss(model(batch.x), batch.x[:, :2], 2.0 * batch.y - 1),
}
OTHERS = {
    "class weights": partial(classes, weight=WEIGHTS),
    "sum": partial(classes, reduction="sum"),
    "SimCLR": lambda model, batch: functional.cross_entropy(like_each_other(model, batch), torch.arange(batch.samples)),
    "over labels": lambda model, batch: functional.cross_entropy(model(batch.x), counted(batch)),
    "variance": lambda model, batch: classes(model, batch) + 0.1 * model(batch.x).var(0).sum(),
    "root": lambda model, batch: functional.mse_loss(*scores(model, batch)).sqrt(),
    "CLIP": clip,
    "focal": focal,
    "hardest": hardest,
    "over the batch's mean": lambda model, batch: functional.mse_loss(*(v - v.mean() for v in scores(model, batch))),
    "logarithm": lambda model, batch: classes(model, batch).log(),
    "a penalty a call": lambda model, batch: classes(model, batch) + penalty(model) * 32 / batch.samples,
}


def trained(samples=640, **options):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return sessions.trained(model, optimizer=optimizer, loader=DataLoader(Numbered(samples), batch_size=32), **options)


@pytest.mark.parametrize("kind", MEANS)
def test_a_mean_over_samples_may_be_divided(kind):
    verdict = trained(loss=MEANS[kind]).loop.division.verdict
    assert verdict.result == "equal"
    assert verdict.difference < 1e-6


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_mean_over_samples_keeps_the_users_batches(kind):
    with pytest.warns(UserWarning, match=r"in parts is off by .* %, so batch size and micro-batch size stay yours"):
        session = trained(2560, loss=OTHERS[kind])
    assert session.loop.division.verdict.difference > 1e-3
    assert {change.point.shape for change in session.record.changes} == {(32, 32)}
    assert any("is off by" in note for note in session.record.notes)


def test_a_loss_that_draws_numbers_is_compared_on_average():
    session = trained(loss=noisy_steps)
    assert session.loop.division.verdict.result == "equal on average"
    assert any("random numbers" in note for note in session.record.notes)


def test_parts_that_the_user_asks_for_are_refused_if_they_change_the_gradient():
    with pytest.raises(InputError, match=r"off by .* %: parts of 8 samples; allowed: whole batches"):
        trained(micro_batch_size=8, loss=OTHERS["SimCLR"])


def test_batch_sizes_by_name_may_be_used_whatever_the_loss(touring):
    with pytest.warns(UserWarning, match="in parts is off by"):
        session = trained(5120, batch_sizes=[16, 64], passes=2, loss=OTHERS["class weights"])
    shapes = {change.point.shape for change in session.record.changes}
    assert shapes > {(32, 32)}
    assert all(batch == micro for batch, micro in shapes)


def test_gradients_that_tell_nothing_are_tried_three_times():
    session = trained(loss=lambda model, batch: 0.0 * classes(model, batch))
    assert session.loop.division.verdict.result == "unequal"
    assert any("zero or not finite" in note for note in session.record.notes)


def test_a_proof_leaves_no_trace():
    """With dropout and normalisation, whose random numbers and statistics would show it."""
    model, data = nn.Sequential(*perceptron(norm=True), nn.Dropout(0.3)), Numbered(32)
    check = DivisionCheck(model, list(model.parameters()), at_once=True)
    model(data.x).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    with check.trying(0) as trial:
        for sizes in trial.plan((32,), (8, 8, 8, 8), check.tolerance):
            for x, y in zip(data.x.split(list(sizes)), data.y.split(list(sizes)), strict=True):
                assert not model.training
                trial.add(functional.cross_entropy(model(x), y), len(x) / 32)
    assert trial.verdict.result == "equal"
    assert torch.equal(torch.rand(1), expected)
    assert all(module.training for module in model.modules())
    assert all(parameter.grad is own for parameter, own in zip(model.parameters(), gradients, strict=True))
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


class Jagged(Dataset):
    """Samples of different lengths, which are laid one after another."""

    def __len__(self):
        return 320

    def __getitem__(self, index):
        return index % 2, torch.full((1 + index % 5,), float(index % 2))

    @staticmethod
    def collate(samples):
        labels, values = zip(*samples, strict=True)
        return torch.tensor(labels), torch.cat(values), torch.tensor([len(one) for one in values])


@pytest.mark.parametrize("micro", [None, 8])
def test_values_laid_one_after_another_are_never_cut(micro):

    def loss(model, batch):
        labels, values, lengths = batch.data
        assert len(values) == lengths.sum()
        means = torch.stack([part.mean() for part in values.split(lengths.tolist())])
        return functional.cross_entropy(model(means[:, None]), labels)

    loader = DataLoader(Jagged(), batch_size=32, collate_fn=Jagged.collate)
    with pytest.raises(InputError, match="cannot be split into micro-batches") if micro else nullcontext():
        session = sessions.trained(nn.Linear(1, 2), loader=loader, micro_batch_size=micro, loss=loss)
    if micro is None:
        assert session.samples == len(Jagged())
        assert any("cannot be split" in note for note in session.record.notes)


@given(st.integers(1, 5), st.integers(1, 3000), st.integers(0, 2**31 - 1))
def test_a_sketch_is_linear_and_keeps_the_norm(tensors, size, seed):
    generator = torch.Generator().manual_seed(seed)
    draws = [[torch.randn(size, generator=generator) for _ in range(tensors)] for _ in range(2)]

    def sketched(gradients):
        parameters = [nn.Parameter(torch.zeros(size)) for _ in gradients]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        return sketch(parameters)

    one, other = map(sketched, draws)
    assert one.shape == (tensors * BUCKETS,)
    both = sketched([a - b for a, b in zip(*draws, strict=True)])
    assert torch.allclose(both, one - other, atol=1e-3)
    norm = torch.cat(draws[0]).norm()
    assert 0.3 * norm <= one.norm() <= 2.5 * norm
