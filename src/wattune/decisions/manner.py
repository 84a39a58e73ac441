"""How careful a search is, and what a probe costs: in a training session, or where nothing else is done meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wattune.decisions.seen import NOISE_LIMIT
from wattune.decisions.worth import LEAST, LIKELY, SURE

PROBE_MAX: Final = 1.2
PROBE_MAX_SD: Final = 0.7
"""Mean and standard deviation of the highest of five normal numbers: a probe sees that many readings."""


@dataclass(frozen=True)
class Manner:
    """How careful a search is, and what a probe costs; the defaults are those of a training session.

    ``deviations``: standard deviations below the cap at which a point counts as keeping it; ``daring``: the same for a
    single setting up where nothing else is left to find out and much may be gained, None for no such step; ``steep``:
    take voltages that are not known to begin to rise right above what was measured. ``noise``: standard deviations of
    the sensor's noise that are left between a point's power and the cap; ``highest``: mean and standard deviation of
    how far that noise brings the highest reading of a probe. ``price``: share of the training's time that a probe is
    taken to cost; None where it is training as well, and costs what it is slower by. ``least``: share of that time
    below which nothing is looked for. ``climb``: how far a probe may be above all settings that were measured, as a
    share of them and two at least; None for as far as they are forecast to keep the cap.
    """

    deviations: float = SURE
    daring: float | None = LIKELY
    steep: bool = False
    noise: float = NOISE_LIMIT
    highest: tuple[float, float] = (PROBE_MAX, PROBE_MAX_SD)
    price: float | None = None
    least: float = LEAST
    climb: float | None = None


SESSION: Final = Manner()
