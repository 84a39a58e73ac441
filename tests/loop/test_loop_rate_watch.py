"""Learning rates above the user's: they rise slowly, and training goes back before they ruin it."""

import logging
import math
import random

import pytest
import torch
from tests.support.sessions import loss_over, perceptron, regression, trained
from torch import nn
from torch.utils.data import DataLoader

from wattune.loop.rate_watch import COPY_EVERY, MOST_RETURNS, WINDOW, LossWatch, RateWatch
from wattune.loop.recipe import RAMP_STEPS, Recipe


def squares(model, batch):
    return nn.functional.mse_loss(model(batch.x), batch.y)


def noisy(level, seed, count=10):
    source = random.Random(seed)
    return [level + source.gauss(0, 0.1) for _ in range(count)]


def seen(*levels):
    watch = LossWatch()
    for seed, level in enumerate(levels):
        assert not watch.is_worse(noisy(level, seed), raised=False)
    return watch


@pytest.mark.parametrize("level", [0.5, 0.4, 0.6, 0.7])
def test_noise_and_a_tenth_of_the_progress_are_no_alarm(level):
    watch = seen(2.3, 1.0, *[0.5] * 30)
    assert not watch.is_worse(noisy(level, 99), raised=True)


@pytest.mark.parametrize("level", [1.5, 2.3, math.inf, math.nan])
def test_a_loss_that_rises_at_a_raised_rate_is_an_alarm(level):
    watch = seen(2.3, 1.0, *[0.5] * 30)
    assert watch.is_worse(noisy(level, 99), raised=True)


@pytest.mark.parametrize("level", [2.3, math.nan])
def test_a_loss_that_rises_at_the_users_own_rate_is_none(level):
    assert not seen(2.3, 1.0, *[0.5] * 30).is_worse(noisy(level, 99), raised=False)


def recipe_of(model, *, lr=0.1):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    recipe = Recipe(optimizer, 32, [], interval=None, keep=False, steps=None)
    recipe.open()
    return recipe, optimizer


def test_the_rate_doubles_no_faster_than_its_ramp_and_falls_at_once():
    recipe, optimizer = recipe_of(perceptron())
    recipe.use(256)
    factors = []
    for _ in range(4 * RAMP_STEPS):
        factors.append(recipe.factor)
        optimizer.step()
    assert factors[0] == 1.0
    assert factors[RAMP_STEPS] == pytest.approx(2.0)
    assert factors[2 * RAMP_STEPS] == pytest.approx(4.0)
    assert factors[-1] == 8.0
    recipe.use(16)
    assert recipe.factor == 0.5
    recipe.use(256)
    assert recipe.factor == 8.0  # it has been there
    recipe.hold()
    assert recipe.factor == 1.0


def test_a_copy_that_is_not_finite_is_not_kept():
    """A parameter turns into NaN in the last step before a copy, whose loss was still good."""
    torch.manual_seed(0)
    data, model, reasons = regression(), nn.Linear(8, 1), []
    recipe, optimizer = recipe_of(model, lr=0.01)
    watch = RateWatch(model, optimizer, recipe, None, reasons.append)
    recipe.use(256)
    for step in range(WINDOW * COPY_EVERY * 2 + WINDOW):
        loss = nn.functional.mse_loss(model(data.tensors[0][:256]), data.tensors[1][:256])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        watch.add(loss, 1.0)
        if step == WINDOW * COPY_EVERY * 2 - 1:
            with torch.no_grad():
                model.weight[0, 0] = math.nan
        watch.end_step()
    assert len(reasons) == 1
    assert "training went back to before that" in reasons[0]
    assert math.isfinite(loss_over(model, data))


@pytest.mark.parametrize(
    ("weight", "memory_bytes", "said"),
    [
        (math.inf, None, "the parameters are not finite any more, so that there is nothing to go back to"),
        (0.0, 100.0, "there is no memory for a copy of the parameters, to go back to if it were too high"),
    ],
)
def test_without_a_copy_to_go_back_to_the_rate_is_not_raised(weight, memory_bytes, said):
    model, reasons = nn.Linear(8, 1), []
    recipe, optimizer = recipe_of(model)
    watch = RateWatch(model, optimizer, recipe, memory_bytes, reasons.append)
    recipe.use(256)
    with torch.no_grad():
        model.weight.fill_(weight)
    for _ in range(3):
        optimizer.step()
        watch.add(torch.zeros(()), 1.0)
        watch.end_step()
    assert recipe.factor == 1.0
    assert reasons == [said]


def after_a_return(disturbed, steps=300):
    """A loop that goes back after some 100 steps, and whose weight jumps after the later steps in ``disturbed``."""
    torch.manual_seed(0)
    data, model, reasons = regression(), nn.Linear(8, 1), []
    recipe, optimizer = recipe_of(model, lr=0.35)
    watch = RateWatch(model, optimizer, recipe, None, reasons.append)
    jumped = []
    for step in range(steps):
        recipe.use(32 if step < 60 or reasons else 256)
        rows = torch.randint(len(data), (32 if step < 60 or reasons else 256,))
        loss = nn.functional.mse_loss(model(data.tensors[0][rows]), data.tensors[1][rows])
        optimizer.zero_grad()
        if loss.item() < 1e6:  # from a jump it does not come back alone
            loss.backward()
            optimizer.step()
        if step in disturbed:
            assert reasons
            jumped.append(loss_over(model, data))
            with torch.no_grad():
                model.weight.fill_(1e6)
        watch.add(loss, 1.0)
        watch.end_step()
    assert len(reasons) == 1
    assert "and training went back to before that" in reasons[0]
    return jumped, loss_over(model, data)


def test_training_that_went_back_is_watched_at_the_users_own_rate_too():
    jumped, end = after_a_return({205})
    assert jumped[0] < 0.05
    assert end < 0.05


def test_it_goes_back_only_a_few_times():
    jumped, end = after_a_return(set(range(205, 300, 15)))
    assert [loss < 0.05 for loss in jumped] == [True] * (MOST_RETURNS + 1) + [False] * (len(jumped) - MOST_RETURNS - 1)
    assert end > 1e6


@pytest.mark.slow
def test_training_that_the_plain_loop_finishes_does_not_diverge_and_larger_batches_stay_left_out(
    touring, caplog, tmp_path
):
    torch.manual_seed(0)
    data, model = regression(), nn.Linear(8, 1)

    def run(passes, **options):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.35)
        loader = DataLoader(data, batch_size=32, shuffle=True)
        options |= {"optimizer": optimizer, "loader": loader, "cap_w": None, "checkpoint": tmp_path / "c"}
        return trained(model, batch_sizes=[32, 256], passes=passes, loss=squares, **options)

    with caplog.at_level(logging.WARNING, logger="wattune"):
        first = run(40)
    assert 256 in {change.point.batch_size for change in first.record.changes}
    assert loss_over(model, data) < 0.05
    said = [note for note in first.record.notes if "batch sizes above 32 are left out" in note]
    assert len(said) == 1
    assert any("training went back" in record.getMessage() for record in caplog.records)
    assert first.record.changes[-1].point.batch_size == 32
    assert not first.recipe.may_rise
    again = run(45, resume=True)
    assert {change.point.batch_size for change in again.record.changes[len(first.record.changes) :]} <= {32}
    assert loss_over(model, data) < 0.05
