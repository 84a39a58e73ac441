"""Drawings of charts as SVG."""

import re

from hypothesis import given
from hypothesis import strategies as st

from wattune.reporting.charts import Area, Axis, Bars, Chart, Dots, HeatMap, Line, Panel, Rule
from wattune.reporting.drawing import draw, legend
from wattune.reporting.thinning import thinned


def texts(drawing):
    return re.findall(r"<text[^>]*>([^<]*)</text>", drawing)


def titles(drawing):
    return re.findall(r"<title>([^<]*)</title>", drawing)


def test_text_is_escaped_once_and_keeps_its_line_breaks():
    dots = Dots([0], [1], "red", "a & b", hovers=["<b> &amp;\n2 W"])
    chart = Chart([Panel([dots], Axis("x <y>", categories=["8\n400 MHz"]), Axis("y"))], legend=True)
    drawing = draw(chart, 556, 300)
    assert titles(drawing) == ["&lt;b&gt; &amp;amp;\n2 W"]
    assert texts(drawing)[:3] == ["8", "400 MHz", "x &lt;y&gt;"]
    assert legend(chart) == {"a & b": "red"}


def test_an_unknown_point_is_a_gap():
    x, y = [0, 1, 2, 3], [1.0, 2.0, None, 4.0]
    panel = Panel([Line(x, y, "red"), Area(x, y, y, "blue"), Dots(x, y, "black")], Axis(range=(0, 3)))
    drawing = draw(Chart([panel]), 556, 300)
    (line,) = re.findall(r'd="([^"]*)" fill="none"', drawing)
    assert (line.count("M"), line.count("L")) == (2, 1)
    assert drawing.count('fill="blue"') == 2
    assert drawing.count("<circle") == 3


def test_equal_names_of_bars_do_not_hide_one_another():
    bars = Bars([1.0, None, 2.0], ["red"] * 3, ["one", "", "two"], errors=[None] * 3)
    drawing = draw(Chart([Panel([bars], Axis("s"), Axis(categories=["rule"] * 3))]), 556, 300)
    assert len(set(re.findall(r'<rect x="[^"]*" y="([^"]*)"', drawing))) == 2
    assert texts(drawing).count("rule") == 3


def test_a_map_with_more_columns_than_rows_is_transposed_on_a_phone():
    values, names = [[1.0, 2.0, 3.0]], [["1", "2", "3"]]
    heat = HeatMap(values, names, hovers=names, colours=("white", "grey", "black"))
    panel = Panel([heat, Dots([2], [0], "red")], Axis("clock", ["a", "b", "c"]), Axis("batch size", ["8"]))
    wide, narrow = (draw(Chart([panel]), width, 300) for width in (556, 348))
    assert titles(wide) == titles(narrow) == ["1", "2", "3"]
    for drawing, places in ((wide, (3, 1)), (narrow, (1, 3))):
        cells = re.findall(r'<rect x="([^"]*)" y="([^"]*)"', drawing)
        assert (len({x for x, _ in cells}), len({y for _, y in cells})) == places


def test_panels_share_the_axis_between_them():
    first, second = Line([0, 1], [0, 1], "red"), Line([4, 5], [8, 9], "blue")
    x, y = Axis(ticks=[0, 5]), Axis(ticks=[0, 9])
    stacked = [Panel([first], x, y, [Rule(0.5, "half")], span=(0.5, 1)), Panel([second], y=y, span=(0, 0.4))]
    assert texts(draw(Chart(stacked, stacked=True), 556, 300)) == ["0", "5", "0", "9", "0", "9", "half"]
    beside = [Panel([first], x, y, span=(0, 0.4)), Panel([second], x, span=(0.5, 1))]
    assert texts(draw(Chart(beside), 556, 300)) == ["0", "5", "0", "9", "0", "5"]


@given(st.lists(st.none() | st.floats(-9, 9), max_size=60), st.integers(3, 30))
def test_of_many_points_the_extremes_and_gaps_are_drawn(values, most):
    shown = thinned(values, most)
    assert list(shown) == sorted(set(shown))
    if len(values) <= most:
        assert list(shown) == list(range(len(values)))
        return
    assert len(shown) <= most
    kept, known = [values[index] for index in shown], [value for value in values if value is not None]
    if known:
        assert {min(known), max(known)} <= set(kept)
    assert (None in kept) == (None in values)


def test_a_long_line_keeps_its_peak():
    y = [1.0] * 100_000
    y[54_321] = 7.0
    drawing = draw(Chart([Panel([Line(range(len(y)), y, "red")], Axis(), Axis(range=(0, 8)))]), 556, 300)
    (line,) = re.findall(r'd="([^"]*)" fill="none"', drawing)
    heights = [float(place.split()[1]) for place in re.split("[ML]", line)[1:]]
    assert len(heights) <= 1.2 * 556
    assert min(heights) < min(height for height in heights if height != min(heights)) - 100
