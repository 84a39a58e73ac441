"""Arrays, their order, augmentation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wattune.errors import InputError, WorkloadError
from wattune.workloads import Augmentation, Data
from wattune.workloads.data import Half, Loaders, Order
from wattune.workloads.example import Digits

X, Y = np.zeros((6, 3), np.float32), np.zeros(6, int)


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ((X, Y[:5]), "(6, 3) and (5,)"),
        ((X[:0], Y[:0]), "at least 1"),
        ((X, np.array([0, 0, -1, 0, 0, 0])), "-1"),
        ((X * np.nan, Y), "NaN"),
        ((X, np.full(6, np.inf)), "NaN or infinite"),
        ((X.astype(complex), Y), "complex"),
        ((X, np.array(list("abcdef"))), "not an array"),
        (([[1, 2], [3]], Y), "not an array"),
        ((X, None), "not an array"),
        (X, "(inputs, targets)"),
        ((X[:, :2], Y), "(3,)"),
        ((X.astype(np.uint8), Y), "torch.float32"),
    ],
)
def test_data_that_does_not_fit_together_is_refused_in_one_line(train, words):
    with pytest.raises(WorkloadError) as caught:
        Data(train=train, test=(X, Y))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@given(
    st.integers(1, 40), st.integers(0, 2**40), st.integers(0, 200), st.lists(st.integers(1, 60), min_size=1, max_size=5)
)
def test_order_depends_on_seed_and_position_alone(samples, seed, start, counts):
    whole = Order(samples, seed).take(0, start + sum(counts))
    order = Order(samples, seed)
    for count in counts:
        assert torch.equal(order.take(start, count), whole[start : start + count])
        start += count
    for number in range(len(whole) // samples):
        assert sorted(whole[number * samples : (number + 1) * samples].tolist()) == list(range(samples))


class TestAugmentation:
    def test_every_sample_has_its_own_draws(self):
        x = torch.arange(1, 65).reshape(1, 1, 8, 8).repeat(400, 1, 1, 1).float()
        changed = Augmentation(flip=True, shift=2).apply(x, seed=0, start=0)
        # 2 mirrorings times 25 moves, all of them seen
        assert len({tuple(sample.flatten().tolist()) for sample in changed}) == 50
        flips = [bool((sample[0, 4].diff() < 0).sum() > 2) for sample in changed]
        assert 160 < sum(flips) < 240

    def test_a_shift_fills_with_zeros(self):
        x = torch.arange(1, 17).reshape(1, 1, 4, 4).float()
        for seed in range(40):
            moved = Augmentation(shift=1).apply(x, seed=seed, start=0)[0, 0]
            visible = moved[moved > 0]
            assert len(visible) in (9, 12, 16)
            assert visible.tolist() == sorted(visible.tolist())
            assert set(visible.tolist()) <= set(x.flatten().tolist())

    def test_noise_has_its_standard_deviation(self):
        noise = Augmentation(noise=0.5).apply(torch.zeros(20, 1, 32, 32), seed=0, start=0)
        assert noise.std().item() == pytest.approx(0.5, rel=0.03)
        assert noise.mean().item() == pytest.approx(0, abs=0.02)
        assert not torch.equal(noise[0], noise[1])

    @pytest.mark.parametrize("values", [{"flip": 1}, {"shift": -1}, {"shift": 1.5}, {"noise": -0.1}, {"noise": np.inf}])
    def test_invalid_values_are_refused(self, values):
        with pytest.raises(WorkloadError, match="allowed"):
            Augmentation(**values)

    def test_samples_that_are_not_images_are_refused(self):
        with pytest.raises(WorkloadError, match="images"):
            Augmentation(flip=True).check((64,))


class TestDigits:
    def test_digits_are_enlarged_inverted_and_noisy(self):
        plain = Digits(classes=(5, 6))()
        inverted = Digits(classes=(5, 6), invert=True)()
        noisy = Digits(classes=(5, 6), noise=0.2)()
        assert plain.train[0].shape[1:] == (1, 32, 32)
        assert len(plain.train[0]) + len(plain.test[0]) == 363  # 182 fives and 181 sixes
        assert torch.allclose(plain.train[0], 1 - inverted.train[0])
        assert (noisy.train[0] - plain.train[0]).std().item() == pytest.approx(0.2, rel=0.02)
        assert torch.equal(noisy.train[0], Digits(classes=(5, 6), noise=0.2)().train[0])

    @pytest.mark.parametrize(
        "values",
        [{"size": 7}, {"invert": 1}, {"noise": -1}, {"test_share": 1.0}, {"split_seed": -1}]
        + [{"classes": classes} for classes in [(), (1, 1), (-1,), (1.0,), ("a",)]],
    )
    def test_invalid_digits_are_refused(self, values):
        with pytest.raises(InputError, match="allowed"):
            Digits(**values)


def test_a_half_is_the_same_half_each_time_and_disjoint_from_the_rest():
    x, y = np.arange(101, dtype=np.float32).reshape(-1, 1), np.zeros(101, dtype=np.int64)
    whole = Data((x, y), (x[:11] + 1000, y[:11]))
    one, other = Half(whole)(), Half(lambda: whole)()
    picked = set(one.train[0].flatten().tolist())
    assert len(picked) == len(one.train[0]) == 50
    assert picked < set(range(101))
    assert max(picked) - min(picked) > 60  # not the first ones, which may be of one class
    assert picked == set(other.train[0].flatten().tolist())
    assert len(one.test[0]) == 5
    assert set(one.test[0].flatten().tolist()) < set(range(1000, 1011))


def test_what_cannot_be_halved_is_refused():
    with pytest.raises(WorkloadError, match=r'proxy = "split": Loaders; allowed: Data'):
        Half(Loaders(lambda batch_size, seed: [], []))()
    x, y = np.zeros((1, 2), dtype=np.float32), np.zeros(1, dtype=np.int64)
    with pytest.raises(WorkloadError, match="training samples to split"):
        Half(Data((x, y), (x, y)))()
