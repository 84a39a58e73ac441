"""The contract of a workload, held by every kind of it."""

import itertools
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.workload_files import (
    KINDS,
    classification,
    image_data,
    images,
    language,
    loaders,
    regression,
    text_data,
    tiny_cnn,
    train_loader,
    with_loaders,
)
from torch import nn

from wattune.errors import InputError, WorkloadError
from wattune.workloads import Augmentation, Data, Loaders, Metric, Model, OptimizerRule


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def workload(request):
    return request.param()


class TestContract:
    def test_trains_and_evaluates_and_restores_the_mode(self, workload):
        workload.check()
        model = workload.model(0).train()
        model[0].eval() if isinstance(model, nn.Sequential) else model.norm.eval()
        before = [part.training for part in model.modules()]
        first = workload.evaluate(model)
        assert [part.training for part in model.modules()] == before
        assert workload.evaluate(model) == first
        assert all(p.grad is None for p in model.parameters())
        optimizer = workload.optimizer(model, 8)
        losses = []
        for x, y in itertools.islice(workload.batches(8, seed=0), 60):
            optimizer.param_groups[0]["lr"] = 0.01
            optimizer.zero_grad()
            loss = workload.loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert np.mean(losses[-10:]) < np.mean(losses[:10])

    @pytest.mark.parametrize("batch_size", [4, 8, 16])
    def test_a_stream_resumes_at_its_position(self, workload, batch_size):
        # 112 samples: more than two passes over the data of every kind
        whole = list(itertools.islice(workload.batches(batch_size, seed=3), 112 // batch_size))
        assert all(len(x) == len(y) == batch_size for x, y in whole)
        for skipped in range(len(whole)):
            rest = workload.batches(batch_size, seed=3, start=skipped * batch_size)
            assert same(next(rest), whole[skipped])

    def test_seeds_change_the_order_and_the_weights(self, workload):
        one, other = (next(workload.batches(16, seed=seed)) for seed in (0, 1))
        assert not torch.equal(one[0], other[0])
        if not isinstance(workload.model.factory, nn.Module):
            assert not torch.equal(next(workload.model(0).parameters()), next(workload.model(1).parameters()))

    def test_models_of_a_seed_are_equal_and_leave_the_global_random_state_alone(self, workload):
        torch.manual_seed(0)
        expected = torch.rand(1)
        torch.manual_seed(0)
        one, other = workload.model(5), workload.model(5)
        workload.example(4)
        assert torch.equal(torch.rand(1), expected)
        assert same(one.state_dict().values(), other.state_dict().values())
        with torch.no_grad():
            next(one.parameters()).add_(1)
        assert not torch.equal(next(one.parameters()), next(other.parameters()))

    def test_an_example_has_the_shapes_and_types_of_the_data(self, workload):
        example, batch = workload.example(8), next(workload.batches(8, seed=0))
        for made, real in zip(example, batch, strict=True):
            assert made.dtype == real.dtype
            assert made.numel() == real.numel()
            assert len(made) == len(real)
        assert torch.isfinite(workload.loss(workload.model(0)(example[0]), example[1]))

    def test_pickling_leaves_out_the_loaded_data(self, workload):
        before = workload.fingerprint()
        sent = pickle.dumps(workload)
        back = pickle.loads(sent)
        assert back.fingerprint() == before
        assert same(next(back.batches(8, seed=1)), next(workload.batches(8, seed=1)))
        assert "loaded" not in pickle.loads(sent).__dict__


class TestStream:
    @given(st.integers(0, 2**32), st.integers(0, 30), st.sampled_from([4, 8, 16]))
    def test_every_batch_size_sees_the_same_samples(self, seed, sixteens, batch_size):
        workload = classification(data=image_data(), augmentation=Augmentation(flip=True, shift=2, noise=0.1))
        small = workload.batches(batch_size, seed=seed, start=16 * sixteens)
        x = torch.cat([next(small)[0] for _ in range(16 // batch_size)])
        assert torch.equal(x, next(workload.batches(16, seed=seed, start=16 * sixteens))[0])

    def test_a_pass_takes_each_sample_once(self):
        x = np.arange(40, dtype=np.float32).reshape(40, 1)
        data = Data((x, np.zeros(40)), (x, np.zeros(40)))
        workload = regression(model=nn.Linear(1, 1), data=data)
        stream = workload.batches(8, seed=0)
        passes = [torch.cat([next(stream)[0] for _ in range(5)]).flatten().tolist() for _ in range(3)]
        assert all(sorted(one) == list(range(40)) for one in passes)
        assert passes[0] != passes[1] != passes[2] != sorted(passes[2])

    def test_loaders_skip_the_last_short_batch_and_reshuffle_every_epoch(self):
        workload = with_loaders()
        sixteen = list(itertools.islice(workload.batches(16, seed=0), 4))  # 42 samples: two batches a pass
        assert not torch.equal(sixteen[0][0], sixteen[2][0])
        assert (workload.train_samples, workload.test_samples) == (42, 20)
        with pytest.raises(WorkloadError, match="no full batch"):
            next(with_loaders(batch_sizes=(64,)).batches(64, seed=0))

    def test_images_are_scaled_and_labels_are_whole(self):
        x, y = next(classification().batches(16, seed=0))
        assert x.dtype == torch.float32
        assert 0 <= x.min() < 0.1 < 0.9 < x.max() <= 1
        assert y.dtype == torch.int64


class TestMetric:
    def test_accuracy_counts_every_test_sample(self):
        data = image_data()
        workload = classification(data=data)
        model = workload.model(0).eval()
        with torch.no_grad():
            right = model(data.test[0].float() / 255).argmax(1) == data.test[1]
        assert workload.evaluate(model) == pytest.approx(right.float().mean().item())

    def test_character_accuracy_counts_every_character(self):
        data = text_data()
        workload = language(data=data)
        model = workload.model(0)
        with torch.no_grad():
            right = (model(data.test[0]).argmax(-1) == data.test[1]).sum().item()
        assert workload.metric.name == "character_accuracy"
        assert workload.evaluate(model) == pytest.approx(right / data.test[1].numel())

    def test_the_mean_squared_error_is_of_equal_shapes(self):
        # (B, 1) against (B,) would silently broadcast to (B, B)
        workload = regression(metric="loss", target=0.1)
        x, y = workload.loaded.test
        model = workload.model(0)
        with torch.no_grad():
            expected = ((model(x)[:, 0] - y) ** 2).mean().item()
        assert workload.evaluate(model) == pytest.approx(expected)
        assert workload.metric.reached(0.1, 0.1)
        assert not workload.metric.reached(0.11, 0.1)

    def test_nan_reaches_nothing(self):
        assert not Metric("mine", "max", max_error).reached(float("nan"), -1e9)
        assert not Metric("mine", "min", max_error).reached(float("nan"), 1e9)

    def test_one_of_the_users_own_sees_all_test_samples_at_once(self):
        workload = regression(metric=Metric("worst", "min", max_error), target=-1)
        x, y = workload.loaded.test
        model = workload.model(0)
        with torch.no_grad():
            assert workload.evaluate(model) == pytest.approx((model(x)[:, 0] - y).abs().max().item())


def max_error(output, target):
    return (output[:, 0] - target).abs().max()


def broken_model():
    raise OSError("no such thing")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_sizes": []}, "batch_sizes"),
        ({"batch_sizes": [8, 4]}, "ascending"),
        ({"batch_sizes": [0, 4]}, "0"),
        ({"batch_sizes": [4.0]}, "4.0"),
        ({"batch_sizes": "4"}, "list of whole numbers"),
        ({"batch_sizes": (8, 16), "batch_size": 12}, "batch_size: 12; allowed: one of batch_sizes, [8, 16]"),
        ({"micro_batch_sizes": [32]}, "at most 16"),
        ({"evaluate_every": 15}, "at least the largest batch size, 16"),
        ({"budget_samples": 15}, "at least evaluate_every, 16"),
        ({"target": 1.01}, "at most 1"),
        ({"target": 0}, "above 0"),
        ({"target": float("nan")}, "nan"),
        ({"target": "high"}, "high"),
        ({"metric": "loss", "target": -0.1}, "above 0"),
        ({"metric": "f1"}, "accuracy, character_accuracy, loss, mae, mse"),
        ({"loss": "hinge"}, "cross_entropy, mae, mse"),
        ({"task": "translation"}, "classification, language, regression"),
        ({"data_type": "fp8"}, "bf16, fp16, fp32, tf32"),
        ({"host_s_per_sample": -1}, "-1"),
        ({"input_shape": None}, "input_shape"),
        ({"input_shape": (1, 0, 8)}, "input_shape"),
        ({"augmentation": Augmentation(shift=8)}, "less than the image"),
    ],
)
def test_invalid_workloads_are_refused(changes, words):
    with pytest.raises(InputError) as caught:
        classification(**changes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        (lambda: classification(model=broken_model), "OSError: no such thing"),
        (lambda: classification(model=dict), "torch.nn.Module"),
        (lambda: classification(input_shape=(3, 8, 8)), "(3, 8, 8)"),
        (lambda: classification(input_shape=(1, 16, 16)), "(1, 8, 8)"),
        (lambda: classification(model=Model(tiny_cnn, {"classes": 2})), "0 to 1"),
        (lambda: classification(loss="mse"), "the loss cannot be computed"),
        (lambda: classification(data=lambda: 5), "int"),
        (lambda: classification(data=lambda: 1 / 0), "ZeroDivisionError"),
        (lambda: classification(data=lambda: (images(dtype=float), images(5, size=9, dtype=float))), "(1, 9, 9)"),
        (lambda: classification(optimizer=lambda model, batch_size: 1 / 0), "the optimizer cannot be created"),
        (lambda: classification(model=Model(tiny_cnn, train_only=("head",))), "conv1, norm1"),
        (lambda: language(data=lambda: Data(*(2 * [(np.full((4, 8), 11), np.zeros((4, 8), int))]))), "0 to 10"),
        (lambda: language(data=lambda: Data(*(2 * [(np.zeros((4, 8), int), np.zeros(4, int))]))), "(8,)"),
        (lambda: classification(data=Loaders(loaders_of_nothing, [])), "no full batch"),
        (lambda: classification(metric=Metric("mine", "max", lambda *_: "good")), "the metric mine cannot be computed"),
        (lambda: classification(metric=Metric("mine", "max", lambda *_: 1 / 0)), "the metric mine cannot be computed"),
        (
            lambda: classification(batch_sizes=(8, 64), evaluate_every=64, budget_samples=640),
            "at most the 40 training samples",
        ),
        (lambda: classification(data=Loaders(train_loader, [])), "the test loader"),
    ],
)
def test_check_reports_a_mismatch_in_one_line(workload, words):
    with pytest.raises(WorkloadError) as caught:
        workload().check()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def loaders_of_nothing(batch_size, seed):
    return []


class TestProxy:
    def test_of_another_task_or_without_target_is_refused(self):
        with pytest.raises(WorkloadError, match=r"no proxy; write .*wattune\.capped"):
            classification().check_proxy()
        with pytest.raises(WorkloadError, match="task of the proxy"):
            classification(proxy=language(target=0.5)).check_proxy()
        with pytest.raises(WorkloadError, match="no target"):
            classification(proxy=classification()).check_proxy()
        with pytest.raises(WorkloadError, match=r"\[8\]"):
            classification(proxy=classification(target=0.5, batch_sizes=(4, 16))).check_proxy()

    def test_of_another_shape_is_warned_about(self):
        assert classification(proxy=classification(target=0.5)).check_proxy() == []
        proxy = classification(target=0.5, input_shape=(1, 16, 16), optimizer=OptimizerRule(learning_rate=1))
        warnings = classification(proxy=proxy).check_proxy()
        assert len(warnings) == 2
        assert "(1, 16, 16)" in warnings[0]
        assert "learning rate" in warnings[1]


class TestFingerprint:
    def test_of_the_structure_ignores_weights_and_data(self):
        workload = classification()
        assert workload.model_fingerprint() == classification(data=loaders(), target=0.5).model_fingerprint()
        others = [
            classification(model=Model(tiny_cnn, {"classes": 4})),
            classification(model=Model(tiny_cnn, train_only=("fc",))),
            language(),
        ]
        assert len({w.model_fingerprint() for w in (workload, *others)}) == 4

    def test_of_a_curve_depends_on_everything_that_shapes_it(self):
        workload = classification(target=0.5)
        same_curve = [
            replace(workload, name="other"),
            replace(workload, batch_sizes=(4, 8, 16)),
            replace(workload, proxy=workload),
            replace(workload, host_s_per_sample=1),
        ]
        other_curve = [
            replace(workload, target=0.6),
            replace(workload, budget_samples=128),
            replace(workload, evaluate_every=32),
            replace(workload, optimizer=OptimizerRule(learning_rate=1e-3)),
            replace(workload, optimizer=an_optimizer),
            replace(workload, augmentation=Augmentation(noise=0.1)),
            replace(workload, data=Data(images(seed=9), images(20, seed=1))),
            replace(workload, data_type="bf16"),
            replace(workload, metric="loss", target=0.5),
            replace(workload, model=Model(tiny_cnn, train_only=("fc",))),
        ]
        assert {w.fingerprint() for w in same_curve} == {workload.fingerprint()}
        assert len({w.fingerprint() for w in (workload, *other_curve)}) == 1 + len(other_curve)

    def test_of_the_optimizer_names_its_kind(self):
        assert classification(optimizer=OptimizerRule("sgd", 1)).optimizer_key() == "sgd"
        assert classification(optimizer=OptimizerRule("sgd", 2, momentum=0.9)).optimizer_key() == "sgd with momentum"
        assert "an_optimizer" in classification(optimizer=an_optimizer).optimizer_key()


def an_optimizer(model, batch_size):
    return torch.optim.SGD(model.parameters(), lr=batch_size)
