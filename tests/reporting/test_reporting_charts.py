"""Charts of a record with any number in it."""

from __future__ import annotations

import math
import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from wattune.reporting.axes import LARGEST, ticks
from wattune.reporting.charts import Axis, Chart, Line, Panel, Rule
from wattune.reporting.drawing import draw

finite = st.floats(-1e6, 1e6, allow_nan=False)


@given(low=finite, width=st.floats(1e-6, 1e6), about=st.integers(1, 8))
def test_ticks_are_few_even_and_in_range(low, width, about):
    high = low + width
    found = ticks(low, high, about)
    if high <= low:
        return
    space = 1e-6 * max(abs(low), abs(high), width)
    assert all(low - space <= tick <= high + space for tick in found)
    assert len(found) <= about + 1
    gaps = [right - left for left, right in pairwise(found)]
    assert all(math.isclose(gap, gaps[0], rel_tol=1e-3, abs_tol=space) for gap in gaps)


@given(
    points=st.lists(
        st.tuples(st.integers(1, 10**6), st.floats(-10, 10) | st.floats(allow_nan=False, allow_infinity=False)),
        min_size=1,
        max_size=30,
    ),
    target=st.floats(-10, 10) | st.floats(allow_nan=False, allow_infinity=False),
)
def test_drawing_stays_inside_the_frame(points, target):
    x, y = zip(*sorted(points), strict=True)
    drawn = draw(Chart([Panel([Line(x, y, "red")], Axis(), Axis(), [Rule(target, "target")])]), 556, 300)
    assert ("target</text>" in drawn) == (abs(target) < LARGEST)
    lines = re.findall(r'd="([^"]*)" fill="none"', drawn)
    numbers = [tuple(map(float, pair.split())) for line in lines for pair in re.split("[ML]", line)[1:]]
    assert len(numbers) == sum(abs(value) < LARGEST for value in y)
    assert all(0 <= x <= 556 and 0 <= y <= 300 for x, y in numbers)
