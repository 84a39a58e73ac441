"""How far a training has come, as a share of the way to its target."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.decisions.progress import share_made
from wattune.records import Evaluation


def evaluations(*pairs):
    return [Evaluation(samples=samples, metric=metric) for samples, metric in pairs]


LINE = evaluations((100, 0.1), (300, 0.3), (500, 0.5))


def test_it_is_read_between_the_evaluations():
    assert share_made(LINE, 0.9, begin=100, end=500) == pytest.approx(0.5)
    assert share_made(LINE, 0.9, begin=150, end=450) == pytest.approx(0.3 / 0.75)


@given(begin=st.floats(-5, 5), way=st.floats(0.1, 9) | st.floats(-9, -0.1), share=st.floats(-0.5, 1.5))
def test_it_is_the_same_in_any_unit_and_direction(begin, way, share):
    made = evaluations((64, begin), (640, begin + share * way))
    assert share_made(made, begin + way, begin=64, end=640) == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize(
    ("made", "target", "begin", "end"),
    [
        ([], 0.9, 100, 500),
        (LINE, 0.9, 99, 500),  # before the first evaluation
        (LINE, 0.9, 100, 501),  # after the last one
        (LINE, 0.9, 251, 500),  # less than twice as far
        (LINE, 0.1, 100, 500),  # no way to be made
    ],
)
def test_what_the_evaluations_do_not_tell_is_not_known(made, target, begin, end):
    assert share_made(made, target, begin=begin, end=end) is None
