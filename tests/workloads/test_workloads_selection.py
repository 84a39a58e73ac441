"""Which samples: shares and splits by seed, on numbers of any size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.workloads.archives_made import pixels

from wattune.errors import WorkloadError
from wattune.workloads.image_sources import fitted
from wattune.workloads.selection import check_share, divided, drawn
from wattune.workloads.sources import Npz


@pytest.mark.parametrize(("samples", "quarter"), [(50_000, 12_500), (73_257, 18_315), (90_000, 22_500)])
def test_quarters_are_those_of_the_paper(samples, quarter):
    x, y = drawn(np.arange(samples), np.arange(samples) % 10, 0.25, seed=3)
    assert len(x) == len(y) == quarter
    train, test = divided(quarter, 0.2, seed=3)
    assert (len(train), len(test)) == (quarter - quarter // 5, quarter // 5)


@given(st.integers(1, 3000), st.floats(0.001, 1), st.integers(0, 2**40))
def test_a_share_is_drawn_without_repeats_and_keeps_the_order(samples, share, seed):
    x = np.arange(samples)
    kept, labels = drawn(x, x * 2, share, seed)
    assert 0 <= len(kept) - share * samples < 1 + 1e-6
    assert np.all(np.diff(kept) > 0)
    assert np.array_equal(labels, kept * 2)
    assert np.array_equal(drawn(x, x, share, seed)[0], kept)


@pytest.mark.parametrize(
    ("samples", "share", "count"), [(100, 0.07, 7), (10, 0.1, 1), (3, 0.34, 2), (5, 1, 5), (9, 1.0, 9)]
)
def test_a_share_is_rounded_up_as_it_is_written(samples, share, count):
    assert len(drawn(np.arange(samples), np.arange(samples), share, 0)[0]) == count


def test_another_seed_draws_others():
    x = np.arange(1000)
    one, other = (set(drawn(x, x, 0.25, seed)[0].tolist()) for seed in (0, 1))
    assert 20 < len(one & other) < 110  # 62.5 by chance
    # What is drawn says nothing about what becomes the test part of as many samples.
    test = set(divided(1000, 0.25, 0)[1].tolist())
    assert 20 < len(one & test) < 110


@given(st.integers(2, 3000), st.floats(0.001, 0.999), st.integers(0, 2**40))
def test_a_split_leaves_nothing_out_and_nothing_twice(samples, share, seed):
    train, test = divided(samples, share, seed)
    assert len(test) == int(samples * share)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(samples))


@pytest.mark.parametrize("share", [0, -1, 1.01, float("nan"), "all", True])
def test_what_is_no_share_is_refused(share):
    with pytest.raises(WorkloadError, match="share"):
        check_share(share)


def test_npz_files_take_a_share_of_the_classes_that_are_kept(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.arange(100.0).reshape(100, 1), labels=np.arange(100) % 10)
    np.savez(tmp_path / "b.npz", images=np.arange(20.0).reshape(20, 1), labels=np.arange(20) % 10)
    data = Npz(tmp_path / "a.npz", classes=(1, 2), share=0.5)()
    assert (len(data.train[0]), len(data.test[0])) == (8, 2)
    assert {int(x) % 10 for x in data.train[0]} == {1, 2}
    data = Npz(tmp_path / "a.npz", tmp_path / "b.npz", share=0.25)()
    assert (len(data.train[0]), len(data.test[0])) == (25, 20)


class TestFitted:
    def test_as_they_are(self):
        images = pixels(3)
        assert fitted(images, None, None) is images
        assert fitted(images, 32, 3) is images

    def test_grey_and_colour(self):
        images = pixels(5)
        grey = fitted(images, None, 1)
        luma = 0.299 * images[:, 0] + 0.587 * images[:, 1] + 0.114 * images[:, 2]
        assert grey.shape == (5, 1, 32, 32)
        assert np.abs(grey[:, 0] - luma).max() <= 0.51
        coloured = fitted(grey, None, 3)
        assert coloured.shape == (5, 3, 32, 32)
        assert (coloured == grey).all()

    @pytest.mark.parametrize("size", [1, 28, 32, 40, 96])
    def test_a_size(self, size):
        even = np.full((4, 3, 96, 64), 77, np.uint8)
        assert (fitted(even, size, None) == 77).all()
        assert fitted(even, size, None).shape == (4, 3, size, size)
        ramp = np.broadcast_to(np.arange(96, dtype=np.uint8) * 2, (1, 1, 96, 96))
        row = fitted(ramp, size, None)[0, 0, 0].astype(int)
        assert np.all(np.diff(row) >= 0)
        assert abs(row.mean() - ramp.mean()) < 2

    def test_smaller_by_whole_steps_is_near_the_mean(self):
        images = pixels(2500, size=2, channels=1)  # more than are resized at a time
        means = images.reshape(2500, 4).mean(1)
        assert np.abs(fitted(images, 1, None).ravel() - means).max() <= 1
