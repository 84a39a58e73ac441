"""Step times from lines and lengths of runs."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.profiling.program.step_times import SKIPPED, PrintedStepTimes, by_lengths


@given(
    st.floats(1e-4, 10), st.floats(0, 100), st.floats(0, 1), st.integers(1, 100), st.integers(1, 1000), st.floats(0, 9)
)
def test_two_run_lengths_give_the_step_back(step_s, other_s, before, few, more, begun_s):
    many = few + more
    stretch = by_lengths((few, other_s + few * step_s), (many, other_s + many * step_s), begun_s)
    assert stretch.times_s[0] == pytest.approx(step_s, rel=1e-3)
    # Wherever the rest is spent, what is left is training alone.
    assert stretch.begin_s >= begun_s + before * other_s - 1e-6 * (1 + other_s)
    assert stretch.end_s <= begun_s + before * other_s + many * step_s + 1e-6 * (1 + other_s + many * step_s)


def test_lines_in_time_and_late_ones():
    times = PrintedStepTimes(re.compile(r"took (\S+)"))
    for n in range(SKIPPED + 4):
        times.hear(10.0 + n, f"epoch 1 took {1.0 if n else 9.0} s")
        times.hear(10.0 + n, "it took long")
        times.hear(10.0 + n, "took -1 s, took nan")
    assert times.stretch(8.0) == (10.0 + SKIPPED - 1, 10.0 + SKIPPED + 3, (1.0,) * 4)
    late = PrintedStepTimes(re.compile(r"took (\S+)"))
    for _ in range(SKIPPED + 4):
        late.hear(20.0, "took 1.0")
    assert late.stretch(8.0) == (16.0, 20.0, (1.0,) * 4)
    assert late.stretch(18.0).begin_s == 18.0  # not before it began
    assert PrintedStepTimes(re.compile("(.)")).stretch(0.0) is None
