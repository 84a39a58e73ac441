"""The caution of a search and the cost of a probe: within a training session, or with nothing else running."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wattune.search.acquisition import LEAST, LIKELY, SURE
from wattune.search.observation import NOISE_LIMIT

PROBE_MAX: Final = 1.2
PROBE_MAX_SD: Final = 0.7
"""Mean and standard deviation of the highest of five normal numbers: a probe takes that many readings."""


@dataclass(frozen=True)
class SearchPolicy:
    """The caution of a search and the cost of a probe; the defaults are those of a training session.

    ``deviations``: standard deviations below the cap at which a point counts as staying under it; ``daring``: the same
    for a single setting up when nothing else is left to find out and much may be gained, None for no such step;
    ``steep``: assume that an unknown voltage begins to rise right above the highest measured setting. ``noise``: room
    left between a point's power and the cap, in standard deviations of the sensor's noise; ``highest``: mean and
    standard deviation of the highest reading of a probe, in those of the noise. ``price``: assumed cost of a probe as
    a share of the time of training; None if a probe is training as well, and costs only what it is slower by.
    ``least``: saving, as a share of that time, below which the search ends. ``climb``: how far above all measured
    settings a probe may be, as a share of the number of settings, but at least two of them; None for as far as the
    points are forecast to stay under the cap.
    """

    deviations: float = SURE
    daring: float | None = LIKELY
    steep: bool = False
    noise: float = NOISE_LIMIT
    highest: tuple[float, float] = (PROBE_MAX, PROBE_MAX_SD)
    price: float | None = None
    least: float = LEAST
    climb: float | None = None


SESSION: Final = SearchPolicy()
