"""Shares and splits of the samples by seed, for data sets of any size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.errors import WorkloadError
from wattune.workloads.sample_selection import check_selection, draw_share, split_indices


@given(st.integers(1, 3000), st.floats(0.001, 1), st.integers(0, 2**40))
def test_a_share_is_drawn_without_repeats_and_keeps_the_order(samples, share, seed):
    x = np.arange(samples)
    part, labels = draw_share(x, x * 2, share, seed)
    assert 0 <= len(part) - share * samples < 1 + 1e-6
    assert np.all(np.diff(part) > 0)
    assert np.array_equal(labels, part * 2)
    assert np.array_equal(draw_share(x, x, share, seed)[0], part)


@pytest.mark.parametrize(
    ("samples", "share", "count"), [(100, 0.07, 7), (10, 0.1, 1), (3, 0.34, 2), (5, 1, 5), (9, 1.0, 9)]
)
def test_a_share_is_rounded_up(samples, share, count):
    assert len(draw_share(np.arange(samples), np.arange(samples), share, 0)[0]) == count


def test_another_seed_draws_other_samples():
    x = np.arange(1000)
    one, other = (set(draw_share(x, x, 0.25, seed)[0].tolist()) for seed in (0, 1))
    assert 20 < len(one & other) < 110  # 62.5 by chance
    # The samples drawn do not determine the test part of as many samples.
    test = set(split_indices(1000, 0.25, 0)[1].tolist())
    assert 20 < len(one & test) < 110


@given(st.integers(2, 3000), st.floats(0.001, 0.999), st.integers(0, 2**40))
def test_a_split_has_every_sample_once(samples, share, seed):
    train, test = split_indices(samples, share, seed)
    assert len(test) == int(samples * share)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(samples))


@pytest.mark.parametrize("share", [0, -1, 1.01, float("nan"), "all", True])
def test_an_invalid_share_is_refused(share):
    with pytest.raises(WorkloadError, match="share"):
        check_selection(0.2, 0, share=share)
