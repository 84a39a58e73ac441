"""The first tenth of a training beside what the proxy runs say of it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.training import training_made as made

from wattune.algorithms import load_checkpoint, open_algorithm, save_checkpoint
from wattune.decisions.noise import NoiseScale
from wattune.errors import Interrupted
from wattune.records import Evaluation, FirstTenth, TrainingRecord
from wattune.training import train
from wattune.training.gradients import EVERY, MOST, GradientWatch
from wattune.training.tenth import NOW_SD, SLOPE, TenthWatch

TENTH = 640
HALF = FirstTenth(from_samples=64, progress=0.5, progress_low=0.3, progress_high=0.7, runs=3)
LOUD = FirstTenth(noise_scale=20.0, noise_scale_low=10.0, noise_scale_high=40.0)


def plan(expected, **changes):
    """Predicts 6,400 samples at batch size 8."""
    values = {"step_s": 0.01, "predicted_s": 8.0, "first_tenth": expected}
    return made.plan(**{**values, **changes})


def linear(metric_at_tenth, *, begin=0.1, end=TENTH):
    """Evaluations every 64 samples, on a straight line to so much after a tenth."""
    rise = (metric_at_tenth - begin) / (TENTH - 64)
    grid = range(64, end + 1, 64)
    return [Evaluation(samples=n, metric=begin + rise * (n - 64), time_s=0.01 * n) for n in grid]


def seen(expected, evaluations, noise=None, target=0.9, why_not="", **changes):
    watch = TenthWatch(plan(expected, **changes), target)
    for count in range(1, len(evaluations) + 1):
        watch.look(evaluations[:count], noise, why_not)
    return watch.seen


def test_progress_inside_the_band_fits():
    found = seen(HALF, linear(0.5))
    assert found.samples == TENTH
    assert found.progress == pytest.approx(0.5)
    assert found.fits is True
    assert found.expected == HALF
    assert (found.samples_now, found.time_now_s) == (None, None)
    assert found.said == (
        "After the first tenth: 50 % of the way to the target was made, where 30 % to 70 % was expected; "
        "the noise scale is not known."
    )


@pytest.mark.parametrize("metric", [0.26, 0.74])
def test_outside_the_band_the_end_is_expected_anew(metric):
    found = seen(HALF, linear(metric))
    progress = (metric - 0.1) / 0.8
    assert found.fits is False
    assert found.samples_now == pytest.approx(6400 * math.exp(SLOPE * (progress - 0.5)))
    assert (found.samples_now > 6400) == (metric < 0.5)
    assert math.log(found.samples_now_high / found.samples_now_low) == pytest.approx(2 * 1.6449 * NOW_SD)
    assert found.time_now_s == pytest.approx(0.01 * found.samples_now)
    assert f"expected now: {found.samples_now:,.0f} samples in all" in found.said


@given(
    st.floats(-5, 5),
    st.floats(0.1, 9) | st.floats(-9, -0.1),
    st.floats(-0.5, 1.5),
)
def test_progress_is_the_same_in_any_unit_and_direction(begin, way, share):
    found = seen(HALF, linear(begin + share * way, begin=begin), target=begin + way)
    assert found.progress == pytest.approx(share, abs=1e-6)


def test_it_is_read_at_a_tenth_where_the_evaluation_comes_later():
    every = [Evaluation(samples=n, metric=n / 1000) for n in (50, 350, 950)]
    found = seen(HALF, every)
    assert found.samples == 950
    assert found.progress == pytest.approx((0.64 - 0.064) / (0.9 - 0.064))


def test_it_is_compared_once():
    far = [*linear(0.5), *(Evaluation(samples=n, metric=0.1) for n in range(704, 1000, 64))]
    assert seen(HALF, far).samples == TENTH
    assert seen(HALF, linear(0.5, end=576)) is None


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        (None, {}),
        (HALF, {"predicted_s": None}),
        (HALF, {"step_s": None}),
    ],
)
def test_what_was_not_predicted_is_not_compared(expected, changes):
    assert seen(expected, linear(0.2), **changes) is None


@pytest.mark.parametrize(
    ("expected", "target"),
    [
        (HALF, None),
        (HALF.model_copy(update={"from_samples": 32}), 0.9),  # before the first evaluation
        (HALF.model_copy(update={"from_samples": 400}), 0.9),  # too near to the tenth
        (HALF.model_copy(update={"progress_low": None, "progress_high": None}), 0.9),  # one proxy run
        (LOUD, 0.9),
    ],
)
def test_what_cannot_be_compared_is_not_known(expected, target):
    found = seen(expected, linear(0.2), target=target, why_not="the batch is not split")
    assert found.fits is None
    assert found.samples_now is None
    assert found.said == (
        "After the first tenth: how far it should have come is not known; "
        "the noise scale is not known, the batch is not split."
    )


@pytest.mark.parametrize(("scale", "fits"), [(20.0, True), (9.0, False), (50.0, False)])
def test_the_noise_scale_beside_that_of_the_curve(scale, fits):
    found = seen(LOUD, linear(0.2), NoiseScale(scale, 0.3))
    assert (found.noise_scale, found.noise_scale_log_sd, found.fits) == (scale, 0.3, fits)
    assert f"the noise scale is {scale:.2g} samples, 10 to 40 was expected" in found.said
    assert ("the batch size stays" in found.said) == (not fits)


# ---------------------------------------------------------------------------------------------------------- gradients


def gradients(workload, batch, samples):
    """Squared norm of the gradient over the first so many of the batch, at the initial weights."""
    module = workload.model(0)
    module.eval()
    loss = workload.loss(module(batch[0][:samples]), batch[1][:samples])
    return float(sum(one.square().sum() for one in torch.autograd.grad(loss, list(module.parameters()))))


def still():
    """A model without dropout and batch normalisation, whose gradient over a batch is the mean over its parts."""
    return torch.nn.Linear(12, 4)


def still_in_parts():
    """The same with parts between which activations may be computed once more."""
    return torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))


@pytest.mark.parametrize(("spec", "model"), [("backprop", still), ("backprop:checkpoint=2", still_in_parts)])
def test_the_norms_are_those_of_the_first_part_and_of_the_whole_batch(spec, model):
    workload = made.workload(model=made.Model(model))
    batch = next(iter(workload.batches(20, seed=0)))
    algorithm = open_algorithm(spec, workload, 20, micro_batch_size=8)
    watch = GradientWatch(
        algorithm.module, plan(LOUD, batch_size=20, micro_batch_size=8, algorithm=algorithm.name), 640.0
    )
    with watch.step(0):
        next(algorithm.run([batch]))
    [(noise, signal)] = watch.state_dict()["pairs"]
    small, big = gradients(workload, batch, 8), gradients(workload, batch, 20)
    assert noise == pytest.approx((small - big) / (1 / 8 - 1 / 20), rel=1e-4)
    assert signal == pytest.approx((20 * big - 8 * small) / 12, rel=1e-4)


def test_only_some_steps_of_the_first_tenth_are_looked_at():
    workload = made.workload()
    algorithm = open_algorithm("backprop", workload, 8, micro_batch_size=4)
    counts = {}
    for samples in (80.0, 8 * EVERY * MOST * 3.0):
        watch = GradientWatch(algorithm.module, plan(LOUD, micro_batch_size=4), samples)
        steps = algorithm.run(workload.batches(8, seed=0))
        for number in range(100):
            with watch.step(number * 8):
                next(steps)
        counts[samples] = len(watch.state_dict()["pairs"])
    assert list(counts.values()) == [math.ceil(10 / EVERY), math.ceil(100 / (EVERY * 3))]
    assert all(not parameter._post_accumulate_grad_hooks for parameter in algorithm.module.parameters())


@pytest.mark.parametrize(
    ("changes", "why_not"),
    [
        ({}, "the batch is not split"),
        ({"micro_batch_size": 8}, "the batch is not split"),
        ({"micro_batch_size": 4, "algorithm": "another"}, "another gives no exact gradients"),
        ({"micro_batch_size": 4, "algorithm": "another:seed=1"}, "another:seed=1 gives no exact gradients"),
        ({"algorithm": "backprop:checkpoint=auto"}, "the batch is not split"),
        ({"micro_batch_size": 4}, "the gradients of so few steps and samples do not tell it"),
    ],
)
def test_why_there_is_no_noise_scale(changes, why_not):
    assert GradientWatch(still(), plan(LOUD, **changes), 640.0).why_not == why_not


# ----------------------------------------------------------------------------------------------------- whole trainings


def started(expected=None, *, samples=1600, **changes):
    """A plan that predicts so many samples, so that a tenth of them is soon over."""
    values = {"micro_batch_size": 2, "step_s": 0.0034, "predicted_s": 0.0034 * samples / 8, "first_tenth": expected}
    return made.plan(**{**values, **changes})


WIDE = FirstTenth(
    from_samples=64,
    progress=0.3,
    progress_low=-9.0,
    progress_high=9.0,
    runs=2,
    noise_scale=10.0,
    noise_scale_low=1e-3,
    noise_scale_high=1e6,
)
AHEAD = WIDE.model_copy(update={"progress": 0.99, "progress_low": 0.98, "progress_high": 1.0})


def test_a_training_is_compared_and_goes_the_same_way():
    workload = made.workload(model=made.Model(still), target=0.99)
    plain = train(made.nano(), workload, started(samples=5120))
    record = train(made.nano(), workload, started(AHEAD, samples=5120))
    assert plain.first_tenth is None
    tenth = record.first_tenth
    assert tenth.samples == 512
    assert tenth.fits is False
    assert tenth.progress < 0.98
    assert tenth.samples_now > 5120
    assert tenth.noise_scale > 0
    assert record.evaluations == plain.evaluations
    assert (record.time_s, record.energy_j, record.replanned) == (plain.time_s, plain.energy_j, ())
    assert TrainingRecord.parse(record.dump()) == record


def test_without_parts_the_noise_scale_is_not_known():
    record = train(made.nano(), made.workload(), started(WIDE, micro_batch_size=None))
    assert record.first_tenth.noise_scale is None
    assert record.first_tenth.fits is True
    assert record.first_tenth.said.endswith("the noise scale is not known, the batch is not split.")


@pytest.mark.parametrize("stop", [2, 8, 10])
def test_a_resumed_training_has_the_same_first_tenth(tmp_path, stop):
    workload = made.workload(model=made.Model(still), target=0.99)
    whole = train(made.nano(), workload, started(AHEAD, samples=5120), checkpoint=tmp_path / "whole")
    left = [stop]

    def interrupt(*_):
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    checkpoint = tmp_path / "checkpoint"
    with pytest.raises(Interrupted):
        train(made.nano(), workload, started(AHEAD, samples=5120), checkpoint=checkpoint, progress=interrupt)
    resumed = train(made.nano(), workload, started(AHEAD, samples=5120), checkpoint=checkpoint, resume=True)
    assert whole.first_tenth.noise_scale is not None
    assert resumed.first_tenth == whole.first_tenth


def test_a_checkpoint_of_an_older_version_is_gone_on_from(tmp_path):
    checkpoint = tmp_path / "checkpoint"

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        train(made.nano(), made.workload(), started(WIDE), checkpoint=checkpoint, progress=interrupt)
    state, extra = load_checkpoint(checkpoint)
    del extra["so_far"]["tenth"], extra["so_far"]["gradients"]
    save_checkpoint(checkpoint, state, extra=extra)
    assert train(made.nano(), made.workload(), started(WIDE), checkpoint=checkpoint, resume=True).first_tenth.fits
