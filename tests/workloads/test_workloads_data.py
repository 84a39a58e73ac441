"""Arrays, their order, augmentation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wattune.errors import InputError, WorkloadError
from wattune.workloads import Augmentation, Data
from wattune.workloads.data import Order
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

    def test_the_input_stays_unchanged(self):
        x = torch.ones(2, 1, 4, 4)
        Augmentation(shift=1, noise=1).apply(x, seed=0, start=0)
        assert torch.equal(x, torch.ones(2, 1, 4, 4))

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
