"""Whether the board has changed while it was profiled: the first cell, measured again from time to time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from wattune.records import AbortedProbe, ProfileCell

DRIFT: Final = 0.02
"""Share by which step time or mean power of the first cell has to differ before anything is rescaled."""

NOISE: Final = 3.0
"""And standard deviations of the difference, as far as readings and steps scatter."""

INDEPENDENT: Final = 8
"""Values that a cell's mean is over at least: several readings show the same window of the sensor."""


def corrected(
    results: Sequence[ProfileCell | AbortedProbe],
) -> tuple[list[ProfileCell | AbortedProbe], tuple[str, ...]]:
    """The results as they would be now, and a note that says by how much they were rescaled.

    The first measured cell tells, each time that it was measured again; in between, the change is taken to be steady.
    """
    first = next((r for r in results if isinstance(r, ProfileCell) and not r.out_of_memory), None)
    if first is None:
        return list(results), ()
    again = [(i, r) for i, r in enumerate(results) if isinstance(r, ProfileCell) and r.point == first.point]
    places = [i for i, _ in again]
    found: list[ProfileCell | AbortedProbe] = list(results)
    notes = []
    for fields, spread, what in (
        (("step_s", "step_std_s"), "step_std_s", "time"),
        (("power_mean_w", "power_std_w", "power_peak_w"), "power_std_w", "power"),
    ):
        logs = [math.log(getattr(cell, fields[0]) / getattr(first, fields[0])) for _, cell in again]
        sd = (getattr(first, spread) or 0.0) / getattr(first, fields[0]) * math.sqrt(2 / INDEPENDENT)
        if max(map(abs, logs)) <= max(DRIFT, NOISE * sd):
            continue
        then = np.interp(np.arange(len(results)), places, logs)
        for i, result in enumerate(found):
            if isinstance(result, ProfileCell) and not result.out_of_memory:
                factor = math.exp(logs[-1] - float(then[i]))
                update = {field: value * factor for field in fields if (value := getattr(result, field)) is not None}
                found[i] = result.model_copy(update=update)
        notes.append(
            f"the first cell's {what} changed by {math.expm1(logs[-1]):+.1%} while this was profiled; "
            "the cells before were rescaled to it"
        )
    return found, tuple(notes)
