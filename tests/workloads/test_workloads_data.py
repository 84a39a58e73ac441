"""Arrays, their order, augmentation, and the sources that a workload file names."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wattune.errors import InputError, WorkloadError
from wattune.workloads import Augmentation, Data
from wattune.workloads.data import Order
from wattune.workloads.sources import PRINTABLE, Digits, Npz, Text

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
        ((X, np.array(list("abcdef"))), "no array"),
        (([[1, 2], [3]], Y), "no array"),
        ((X, None), "no array"),
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
    def test_draws_for_every_sample_on_its_own(self):
        x = torch.arange(1, 65).reshape(1, 1, 8, 8).repeat(400, 1, 1, 1).float()
        changed = Augmentation(flip=True, shift=2).apply(x, seed=0, start=0)
        # 2 mirrorings times 25 moves, all of them seen
        assert len({tuple(sample.flatten().tolist()) for sample in changed}) == 50
        flips = [bool((sample[0, 4].diff() < 0).sum() > 2) for sample in changed]
        assert 160 < sum(flips) < 240

    def test_moves_zeros_in(self):
        x = torch.arange(1, 17).reshape(1, 1, 4, 4).float()
        for seed in range(40):
            moved = Augmentation(shift=1).apply(x, seed=seed, start=0)[0, 0]
            kept = moved[moved > 0]
            assert len(kept) in (9, 12, 16)
            assert kept.tolist() == sorted(kept.tolist())
            assert set(kept.tolist()) <= set(x.flatten().tolist())

    def test_noise_has_its_standard_deviation(self):
        noise = Augmentation(noise=0.5).apply(torch.zeros(20, 1, 32, 32), seed=0, start=0)
        assert noise.std().item() == pytest.approx(0.5, rel=0.03)
        assert noise.mean().item() == pytest.approx(0, abs=0.02)
        assert not torch.equal(noise[0], noise[1])

    def test_leaves_what_came_in_as_it_was(self):
        x = torch.ones(2, 1, 4, 4)
        Augmentation(shift=1, noise=1).apply(x, seed=0, start=0)
        assert torch.equal(x, torch.ones(2, 1, 4, 4))

    @pytest.mark.parametrize("values", [{"flip": 1}, {"shift": -1}, {"shift": 1.5}, {"noise": -0.1}, {"noise": np.inf}])
    def test_refuses_what_means_nothing(self, values):
        with pytest.raises(WorkloadError, match="allowed"):
            Augmentation(**values)

    def test_is_for_images(self):
        with pytest.raises(WorkloadError, match="images"):
            Augmentation(flip=True).check((64,))


def npz(path, images, labels):
    np.savez(path, images=images, labels=labels)
    return path


class TestNpz:
    def test_keeps_the_classes_in_their_order(self, tmp_path):
        labels = np.array([5, 9, 7, 7, 1, 9])
        images = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1)
        path = npz(tmp_path / "a.npz", images, labels)
        data = Npz(path, path, classes=(9, 5, 7))()
        assert data.train[1].tolist() == [1, 0, 2, 2, 0]
        assert data.train[0].flatten().tolist() == [0, 1, 2, 3, 5]

    def test_is_split_by_the_seed(self, tmp_path):
        path = npz(tmp_path / "a.npz", np.arange(10.0).reshape(10, 1), np.zeros(10, int))
        one, other = (Npz(path, test_share=0.3, split_seed=seed)() for seed in (0, 1))
        assert (len(one.train[0]), len(one.test[0])) == (7, 3)
        assert sorted(torch.cat([one.train[0], one.test[0]]).flatten().tolist()) == list(range(10))
        assert set(one.test[0].flatten().tolist()) != set(other.test[0].flatten().tolist())

    def test_inputs_and_targets_are_for_whatever_are_no_images(self, tmp_path):
        x, y = np.random.default_rng(0).normal(size=(10, 4, 3)), np.arange(10.0)
        np.savez(tmp_path / "a.npz", inputs=x, targets=y)
        data = Npz(tmp_path / "a.npz", test_share=0.2)()
        assert data.train[0].shape == (8, 4, 3)
        for found, target in zip(*data.train, strict=True):
            assert torch.equal(found, torch.from_numpy(x)[int(target)])
        np.savez(tmp_path / "a.npz", inputs=x, labels=y)
        with pytest.raises(WorkloadError, match="lacks the array: targets"):
            Npz(tmp_path / "a.npz")()

    @pytest.mark.parametrize("cut", [0, 10, -30])
    def test_that_is_cut_off_is_refused(self, tmp_path, cut):
        path = npz(tmp_path / "a.npz", np.zeros((9, 1)), np.zeros(9, int))
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(WorkloadError, match="cannot read"):
            Npz(path)()

    def test_with_other_content_is_refused(self, tmp_path):
        with pytest.raises(WorkloadError, match="no such data file"):
            Npz(tmp_path / "a.npz")()
        np.savez(tmp_path / "a.npz", x=np.zeros(3))
        with pytest.raises(WorkloadError, match="lacks the array: images"):
            Npz(tmp_path / "a.npz")()
        npz(tmp_path / "a.npz", np.array([{}, {}]), np.zeros(2, int))  # pickled objects are not opened
        with pytest.raises(WorkloadError, match="cannot read"):
            Npz(tmp_path / "a.npz")()
        np.save(tmp_path / "b.npz.npy", np.zeros(3))
        with pytest.raises(WorkloadError, match="cannot read"):
            Npz(tmp_path / "b.npz.npy")()
        path = npz(tmp_path / "a.npz", np.zeros((4, 1)), np.arange(4))
        with pytest.raises(WorkloadError, match=r"\[7\]"):
            Npz(path, classes=(1, 7))()


class TestText:
    def test_the_target_is_the_character_after(self, tmp_path):
        (tmp_path / "a.txt").write_text("abcabcabcab")
        (tmp_path / "b.txt").write_text("cabXc")
        data = Text(tmp_path / "a.txt", 3, test=tmp_path / "b.txt")()
        assert data.train[0].tolist() == [[0, 1, 2]] * 3
        assert data.train[1].tolist() == [[1, 2, 0]] * 3
        assert data.test[0].tolist() == [[2, 0, 1]]  # X is not in the training text
        assert data.test[1].tolist() == [[0, 1, 2]]

    def test_one_vocabulary_for_every_text(self, tmp_path):
        (tmp_path / "a.txt").write_text("Zürich,\nBern " * 20)
        data = Text(tmp_path / "a.txt", 5, vocabulary="ascii")()
        letters = sorted(PRINTABLE)
        text = "".join(letters[number] for number in data.train[0].flatten().tolist())
        assert len(letters) == 96
        assert text.startswith("Zrich,\nBern Zrich")

    def test_too_short_or_unreadable_is_refused(self, tmp_path):
        with pytest.raises(WorkloadError, match="no such data file"):
            Text(tmp_path / "a.txt", 5)()
        (tmp_path / "a.txt").write_text("short")
        with pytest.raises(WorkloadError, match="too short"):
            Text(tmp_path / "a.txt", 5)()
        (tmp_path / "a.txt").write_bytes(b"\xff\xfe\xff")
        with pytest.raises(WorkloadError, match="UTF-8"):
            Text(tmp_path / "a.txt", 5)()


class TestDigits:
    def test_are_larger_and_inverted_and_noisy(self):
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
    def test_refuse_what_means_nothing(self, values):
        with pytest.raises(InputError, match="allowed"):
            Digits(**values)
