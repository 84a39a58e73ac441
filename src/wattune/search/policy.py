"""The caution of a search and the cost of a probe: within a training session, or with nothing else running."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from wattune.sample_efficiency.choice import P_SWITCH
from wattune.search.acquisition import LEAST, LIKELY, SURE
from wattune.search.forecast import ABOVE, ABOVE_SD
from wattune.search.observation import NOISE_LIMIT, PICKED

PROBE_MAX: Final = 1.2
PROBE_MAX_SD: Final = 0.7
"""Mean and standard deviation of the highest of five normal numbers: a probe takes that many readings."""

PROBE_WINDOWS: Final = 3
"""Windows of the sensor that a probe measures for."""

TOLERANCE: Final = 0.01
"""Share of a cap on a mean by which a probe may be above it without breaking it."""

SEVERAL_SURE: Final = 1.8
"""``SURE`` for a probe of several clocks: with thousands of settings there is always one more that is surely below the
cap and tells a little, so that a search that takes all of those first never reaches the cap."""

SEVERAL_LIKELY: Final = 1.0
"""``LIKELY`` for a step of one of several clocks above its highest measured value: it is dared sooner."""

SEVERAL_LEAST: Final = 0.003
"""Most that ``least`` is for several clocks: settings are many, and what separates them is little."""

STOPPED_SD: Final = 0.006
"""Relative error of the mean power that stopped a probe."""


@dataclass(frozen=True)
class SearchPolicy:
    """The caution of a search and the cost of a probe; the defaults are those of a training session.

    ``deviations``: standard deviations below the cap at which a point counts as staying under it; ``probing``: the same
    for a point to be probed; ``daring``: the same for a single setting up when nothing else is left to find out and
    much may be gained, None for no such step. ``noise``: room left between a point's power and the cap, in standard
    deviations of the sensor's noise; ``highest``: mean and standard deviation of the highest reading of a probe, in
    those of the noise. ``above``: ln(power of a point over what stopped its probe), mean and standard deviation.
    ``trains``: a probe is training as well, and costs only what it is slower by. ``least``: saving, as a share of the
    time left, below which the search ends. ``climb``: how far above all measured settings a probe may be, as a share of
    the number of settings, but at least two of them; None for as far as the points are forecast to stay under the cap.
    ``tolerance``: share of the cap by which a probe may be above it. ``windows``: of the sensor that a probe measures
    for. ``switch``: least probability of being faster than the user's own batch size for which another one is chosen;
    0 for whichever is faster.
    """

    deviations: float = SURE
    probing: float = SURE
    daring: float | None = LIKELY
    noise: float = NOISE_LIMIT
    highest: tuple[float, float] = (PROBE_MAX, PROBE_MAX_SD)
    trains: bool = True
    least: float = LEAST
    climb: float | None = None
    above: tuple[float, float] = (ABOVE, ABOVE_SD)
    tolerance: float = 0.0
    windows: int = PROBE_WINDOWS
    switch: float = 0.0

    def windowed(self, several: bool) -> SearchPolicy:
        """The same for a cap on the mean power over a window, which the sensor's noise hardly reaches, and for a device
        with several knobs to set."""
        least = min(self.least, SEVERAL_LEAST) if several else self.least
        several = several and self.daring is not None
        return replace(
            self,
            deviations=max(PICKED, self.deviations - (SURE - PICKED)),
            probing=SEVERAL_SURE if several else self.probing,
            least=least,
            tolerance=TOLERANCE if several else 0.0,
            noise=0.0,
            highest=(0.0, 0.0),
            daring=None if self.daring is None else SEVERAL_LIKELY if several and not self.trains else LIKELY,
            above=(0.0, STOPPED_SD),
        )


SESSION: Final = SearchPolicy()

SESSION_BY_CURVE: Final = SearchPolicy(switch=P_SWITCH)
"""For a session that knows a curve of the samples. By a noise scale or the prior alone another batch size is hardly
ever surely faster, and keeping the user's own would cost two to six percent of the time on average."""
