"""Charts as data: panels, their axes and the marks in them, which ``wattune.reporting.drawing`` draws as SVG.

Texts are plain, with line breaks; colours are those of the page's style sheet, such as "var(--accent)".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Values = Sequence[float | None]
"""Coordinates of points; None for an unknown one."""

Symbol = Literal["circle", "ring", "cross", "square", "triangle-up", "triangle-down"]

BATCH_COLOURS = 6
"""Steps of the colour ramp for batch sizes in page.css."""


@dataclass(frozen=True)
class Axis:
    """An axis with its title, units included. Its range is that of the marks unless it is given.

    ``categories``: names of the places 0, 1, 2, ... of an axis without grid lines. ``ticks``: the values to label
    instead of round numbers. ``from_zero``: the range includes 0.
    """

    title: str = ""
    categories: Sequence[str] = ()
    ticks: Sequence[float] = ()
    range: tuple[float, float] | None = None
    from_zero: bool = False
    grid: bool = True


@dataclass(frozen=True)
class Line:
    """A line, with gaps at unknown points; its name shows under the pointer.

    ``stairs``: between two points it first runs horizontally, then vertically.
    """

    x: Values
    y: Values
    colour: str
    name: str = ""
    width: float = 2
    dash: Literal["solid", "dashed", "dotted"] = "solid"
    stairs: bool = False


@dataclass(frozen=True)
class Area:
    """The area between two lines, with gaps where one of them is unknown."""

    x: Sequence[float]
    low: Values
    high: Values
    colour: str

    @property
    def y(self) -> Values:
        """The values of both lines."""
        return (*self.low, *self.high)


@dataclass(frozen=True)
class Dots:
    """Markers, with a text for each that shows under the pointer."""

    x: Values
    y: Values
    colour: str
    name: str = ""
    size: float = 9
    symbol: Symbol = "circle"
    hovers: Sequence[str] = ()


@dataclass(frozen=True)
class Bars:
    """Horizontal bars at the places 0, 1, 2, ...; none for an unknown length.

    ``errors``: lengths of the error bars to both sides of each end.
    """

    lengths: Values
    colours: Sequence[str]
    hovers: Sequence[str]
    errors: Values

    @property
    def x(self) -> Values:
        """The horizontal extent."""
        ends = [length + error for length, error in zip(self.lengths, self.errors, strict=True) if length and error]
        return (0.0, *self.lengths, *ends)

    @property
    def y(self) -> Values:
        """The vertical extent."""
        return range(len(self.lengths))


@dataclass(frozen=True)
class HeatMap:
    """Coloured cells at the places 0, 1, 2, ... of both axes, row by row; an unknown value leaves its cell blank.

    ``colours``: of the lowest value, of the geometric mean of both ends, and of the highest value.
    """

    values: Sequence[Values]
    texts: Sequence[Sequence[str]]
    hovers: Sequence[Sequence[str]]
    colours: tuple[str, str, str]

    @property
    def x(self) -> Values:
        """Places of the columns."""
        return range(len(self.values[0]))

    @property
    def y(self) -> Values:
        """Places of the rows."""
        return range(len(self.values))


Mark = Line | Area | Dots | Bars | HeatMap


@dataclass(frozen=True)
class Rule:
    """A dashed line across a panel at a value of the vertical axis.

    In the colour of the cap, or in grey with the label at the left if it is ``quiet``.
    """

    value: float
    label: str = ""
    quiet: bool = False


@dataclass(frozen=True)
class Band:
    """A shaded part of the horizontal axis."""

    begin: float
    end: float


@dataclass(frozen=True)
class Panel:
    """Marks on a pair of axes. ``span``: the part of the chart's width, or of its height if stacked, from 0 to 1."""

    marks: Sequence[Mark]
    x: Axis = Axis()
    y: Axis = Axis()
    rules: Sequence[Rule] = ()
    bands: Sequence[Band] = ()
    span: tuple[float, float] = (0.0, 1.0)


@dataclass(frozen=True)
class Chart:
    """One panel or several: side by side with the vertical axis of the first, or ``stacked`` with its horizontal axis.

    ``legend``: list the named marks above the chart.
    """

    panels: Sequence[Panel]
    stacked: bool = False
    legend: bool = False

    @property
    def marks(self) -> list[Mark]:
        """The marks of all panels."""
        return [mark for panel in self.panels for mark in panel.marks]


def batch_colour(batch_sizes: Sequence[int], batch_size: int) -> str:
    """The colour of one batch size among these: the same in every chart with the same batch sizes."""
    place = sorted(batch_sizes).index(batch_size)
    step = round(place * (BATCH_COLOURS - 1) / max(1, len(batch_sizes) - 1))
    return f"var(--batch-{step})"
