"""The user's optimizer, schedulers and gradient scaling hold at every batch size."""

import math

import pytest
import torch
from tests.support.sessions import Numbered, distance, loss_of, perceptron, plain, session_of, train, trained
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from wattune.errors import InputError

PASSES = 6
STEPS = 20 * PASSES

SCHEDULERS = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 7, 0.7),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, STEPS, eta_min=1e-4),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=STEPS + 1),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5), lr_scheduler.ExponentialLR(optimizer, 0.95)],
        milestones=[5],
    ),
}


def loader_of(samples=640):
    return DataLoader(Numbered(samples), batch_size=32, shuffle=True, generator=torch.Generator().manual_seed(3))


def sgd(model, **options):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)


def clip(model, norm):
    torch.nn.utils.clip_grad_norm_(model.parameters(), norm)


def rise(session):
    """Let the learning rate have risen to that of every batch size before."""
    session.recipe.ceiling = 8.0


def run(model, optimizer, *, passes=PASSES, samples=640, weight=1.0, **options):
    def weighted(model, batch):
        return loss_of(model, batch) * weight

    options = {"loader": loader_of(samples), **options}
    return trained(model, optimizer=optimizer, passes=passes, loss=weighted, **options)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_is_ticked_as_in_the_plain_loop(name):
    mine, other = perceptron(), perceptron()
    optimizer, plainly = sgd(mine), sgd(other)
    scheduler, same = SCHEDULERS[name](optimizer), SCHEDULERS[name](plainly)
    run(mine, optimizer, scheduler=scheduler, scheduler_interval="step", keep_recipe=True, micro_batch_size=8)
    plain(other, plainly, loader_of(), PASSES, after_step=same.step)
    assert scheduler.get_last_lr() == pytest.approx(same.get_last_lr())
    assert distance(mine, other) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("samples", [640, 650])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_schedule_is_one_of_samples_where_the_batch_size_changes(name, samples, touring):
    mine, other = perceptron(), perceptron()
    optimizer, plainly = sgd(mine), sgd(other)
    passes = PASSES if samples == 640 else PASSES - 1
    scheduler, same = SCHEDULERS[name](optimizer), SCHEDULERS[name](plainly)
    session = run(mine, optimizer, scheduler=scheduler, scheduler_interval="step", passes=passes, samples=samples)
    plain(other, plainly, loader_of(samples), passes, after_step=same.step)
    assert len({change.point.batch_size for change in session.record.changes}) > 1
    assert scheduler.get_last_lr() == pytest.approx(same.get_last_lr())


def test_a_scheduler_may_be_ticked_once_a_pass():
    mine, other = perceptron(), perceptron()
    optimizer, plainly = sgd(mine), sgd(other)
    scheduler, same = (lr_scheduler.StepLR(o, 2, 0.5) for o in (optimizer, plainly))
    run(mine, optimizer, scheduler=scheduler, scheduler_interval="epoch", keep_recipe=True)
    plain(other, plainly, loader_of(), PASSES, after_pass=same.step)
    assert distance(mine, other) < 1e-5


@pytest.mark.parametrize(
    "made",
    [
        SCHEDULERS["CosineAnnealingLR"],
        SCHEDULERS["OneCycleLR"],
        lambda optimizer: lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1.0, step / 10) * max(0.0, 1 - step / STEPS)
        ),
        lambda optimizer: lr_scheduler.SequentialLR(
            optimizer,
            [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5), lr_scheduler.PolynomialLR(optimizer, STEPS)],
            milestones=[5],
        ),
    ],
)
def test_a_schedule_that_outlasts_a_pass_counts_steps(made):
    model = perceptron()
    optimizer = sgd(model)
    scheduler = made(optimizer)
    before = repr(scheduler.state_dict()), optimizer.param_groups[0]["lr"]
    session = session_of(model, optimizer=optimizer, scheduler=scheduler, loader=loader_of())
    assert session.recipe.interval == "step"
    assert (repr(scheduler.state_dict()), optimizer.param_groups[0]["lr"]) == before


def test_reduce_on_plateau_is_stepped_by_the_user_between_passes():
    model = perceptron()
    optimizer = sgd(model)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    run(model, optimizer, scheduler=[scheduler], on_pass=lambda _: scheduler.step(1.0))
    assert optimizer.param_groups[0]["lr"] < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "power", "rule"),
    [
        (torch.optim.AdamW, 0.5, "square root of the batch size (AdamW)"),
        (torch.optim.RMSprop, 0.5, "square root"),
        (torch.optim.SGD, 1.0, "in proportion to the batch size (SGD)"),
    ],
)
def test_the_learning_rate_follows_the_batch_size_in_every_group(kind, power, rule, touring):
    model = perceptron()
    groups = [{"params": model[0].parameters(), "lr": 1e-3}, {"params": model[2].parameters(), "lr": 1e-4}]
    optimizer = kind(groups)
    used = []
    optimizer.register_step_post_hook(lambda *_: used.append([group["lr"] for group in optimizer.param_groups]))
    session = run(model, optimizer, passes=20, on_batch=rise)
    assert rule in session.record.recipe.learning_rate_rule
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 1e-4]
    assert len({tuple(rates) for rates in used}) > 2
    for first, second in used:
        assert second / first == pytest.approx(0.1)
        size = 32 * (first / 1e-3) ** (1 / power)
        assert math.log2(size) == pytest.approx(round(math.log2(size)), abs=1e-6)


@pytest.mark.parametrize(("scales", "clips"), [(False, True), (True, False), (True, True)])
def test_scaling_and_clipping_are_those_of_the_plain_loop(scales, clips):
    """What is called before a step sees whole, unscaled gradients."""
    mine, other = perceptron(), perceptron()
    optimizer, plainly = sgd(mine), sgd(other)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if scales else None
    before = (lambda: clip(mine, 0.05)) if clips else None
    run(mine, optimizer, keep_recipe=True, micro_batch_size=8, scaler=scaler, before_step=before)
    if clips:
        plainly.register_step_pre_hook(lambda *_: clip(other, 0.05))
    plain(other, plainly, loader_of(), PASSES)
    assert distance(mine, other) < 1e-5


def test_a_few_overflows_are_skipped_and_scheduled():
    """The schedule counts skipped steps, as a plain loop does, and each rate is the plain loop's."""
    model, rates = perceptron(), []
    optimizer = sgd(model)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: rates.append(step) or 0.99**step)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    session = run(
        model, optimizer, keep_recipe=True, scaler=scaler, scheduler=scheduler, scheduler_interval="step", weight=64
    )
    assert scaler.get_scale() < 2.0**127
    assert session.record.steps == STEPS
    assert rates == list(range(STEPS + 1))
    assert optimizer.param_groups[0]["lr"] == pytest.approx(optimizer.param_groups[0]["initial_lr"] * 0.99**STEPS)


def test_scaling_that_overflows_many_steps_in_a_row_is_an_error():
    model = perceptron()
    optimizer = sgd(model)
    with pytest.raises(InputError, match="gradient scaling found no scale"):
        run(model, optimizer, scaler=torch.amp.GradScaler("cpu"), weight=math.inf)


def test_the_gradient_noise_is_measured_on_the_way():
    # However many steps the search happens to probe with: norms are taken of the others.
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with session_of(model, optimizer=optimizer, loader=loader_of()) as session:
        while session.sample_model.scale is None and session.passes < 100:
            train(session, model)
    assert session.record.efficiency_from == "prior and noise scale"
    assert session.record.noise_scale > 0


@pytest.mark.parametrize("before_step", [None, lambda: None])
def test_the_noise_scale_does_not_see_what_the_gradients_are_scaled_by(before_step):
    found = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=2.0**12)):
        model = perceptron()
        options = {"passes": 3, "micro_batch_size": 16, "batch_sizes": [32, 64], "before_step": before_step}
        norms = run(model, sgd(model), scaler=scaler, **options).sample_model.norms.state_dict()
        found.append(norms["pairs"][:5])
    for plainly, scaled in zip(*found, strict=True):
        assert scaled == pytest.approx(plainly, rel=1e-3)


@pytest.mark.slow
def test_the_rest_of_a_pass_is_not_trained_on_with_a_larger_batchs_learning_rate(touring):
    """660 samples leave 20 behind batches of 128: they are a step of the user's own recipe, not of four times that."""
    model, rates, steps = perceptron(), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with session_of(model, optimizer=optimizer, loader=loader_of(660)) as session:
        rise(session)
        # Hooks are called in their order, and the session's came before: this is what it left for the step.
        optimizer.register_step_pre_hook(lambda *_: rates.append(optimizer.param_groups[0]["lr"] / 0.1))
        for _ in range(40):
            samples = 0
            for batch in session.batches():
                samples += 0 if batch.is_check else batch.samples
                session.backward(loss_of(model, batch))
                if batch.last:
                    steps.append(samples)
                    samples = 0
    assert len(steps) == len(rates)
    assert len(set(steps)) > 5
    for samples, rate in zip(steps, rates, strict=True):
        assert samples / 32 <= rate * (1 + 1e-9)
        assert rate <= max(samples, 32) / 32 * (1 + 1e-9)
    assert max(rates) >= 2


def test_gradients_that_nobody_clears_do_not_count_as_noise():
    """Where only the head is trained, and the rest still asks for gradients."""
    model = perceptron()
    optimizer = torch.optim.SGD(model[-1].parameters(), lr=1e-3)
    session = run(model, optimizer, passes=12, keep_recipe=False)
    signals = [abs(noise) for noise, _ in session.sample_model.norms.state_dict()["pairs"]]
    assert len(signals) > 4
    assert max(signals[-4:]) < 20 * max(signals[:4])
