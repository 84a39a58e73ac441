"""Values at which members of a group that wait for the slowest draw least power, found by raising them."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Final

RISES: Final = (2.0, 2.0**0.5)
"""Factors by which a value rises: by the first one while that saves power, then by the second."""

MOST_RISES: Final = 6

GAIN: Final = 0.01
"""Least share of a member's mean power that a rise has to save."""

ROOM: Final = 0.03
"""Share of the cap that a rise stays below it by, even if all power rises with the value."""

STEPS: Final = 3
WINDOWS: Final = 5
"""Least numbers of steps and of the sensor's windows that a member's mean power is taken over."""

LONGER: Final = 2.5
"""Most that this time is made longer by, as a factor, so that it holds nearly a whole number of both."""


def trial_readings(step_s: float, window_s: float, rate_hz: float) -> int:
    """Number of readings of which the mean power is taken.

    A step has its computing first, and then its waiting: the mean of a time with half a step too much of one of them
    would be wrong, most of all with a sensor that averages over nearly a step.
    """

    def misfit_s(count: int) -> float:
        seconds = count / rate_hz
        return abs(seconds - round(seconds / step_s) * step_s) + abs(seconds - round(seconds / window_s) * window_s)

    least = math.ceil(rate_hz * max(STEPS * step_s, WINDOWS * window_s))
    return min(range(least, math.ceil(LONGER * least)), key=misfit_s)


def sprint_rows(
    values: Sequence[Sequence[float]], reference: int, pools: Sequence[int], limit_w: float
) -> Generator[tuple[float, ...], Sequence[float], tuple[float, ...]]:
    """Yield the values that the members should be at next, and take their mean power there in watts.

    A member that computes faster than the slowest one waits for it in every step. If waiting draws little, a step may
    cost less energy at a higher clock: what runs for as long as the member computes then runs for a shorter time. If
    software waits actively, it does not. So this is measured, while the ``reference`` is at its lowest value and all
    others rise from theirs; the pace is the same meanwhile, so that less energy for a step is less mean power.

    ``values``: each member's, ascending by power; ``pools``: those that share a cap of ``limit_w`` watts. Returns: the
    values at which they draw least.
    """
    best = [own[0] for own in values]
    least_w = list((yield tuple(best)))
    rises = {member: 0 for member in range(len(values)) if member != reference}  # number of the factor to rise by
    for _ in range(MOST_RISES):
        row = list(best)
        for member, rise in rises.items():
            rising_w = sum(least_w[other] for other in rises if pools[other] == pools[member])
            drawn_w = sum(watts for watts, pool in zip(least_w, pools, strict=True) if pool == pools[member])
            room_w = max(0.0, (1 - ROOM) * limit_w - drawn_w)
            most = best[member] * min(RISES[rise], 1 + room_w / rising_w)
            row[member] = max(value for value in values[member] if value <= most)
        rises = {member: rise for member, rise in rises.items() if row[member] > best[member]}
        if not rises:
            break
        watts = yield tuple(row)
        for member in list(rises):
            if watts[member] < (1 - GAIN) * least_w[member]:
                best[member], least_w[member] = row[member], watts[member]
            elif rises[member] + 1 < len(RISES):
                rises[member] += 1
            else:
                del rises[member]
    return tuple(best)
