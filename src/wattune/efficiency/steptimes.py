"""What the device says of the batch sizes: the time of a sample at the fastest setting that the cap allows."""

from __future__ import annotations

import math
from collections.abc import Mapping

from wattune.errors import InputError


def given_times(step_s: Mapping[int, float]) -> dict[int, tuple[float, float]]:
    """Batch size -> mean and standard deviation of ln(seconds per sample), from seconds of a step.

    They are taken as they are: the standard deviation is 0.

    Raises: InputError where there are none, or one is none.
    """
    if not step_s:
        raise InputError("no step times", allowed="those of the batch sizes that the device can run")
    for size, seconds in step_s.items():
        if size < 1 or not 1e-9 < seconds < 1e9:
            raise InputError(f"step time of batch size {size}", value=seconds, allowed="seconds above 1e-9, below 1e9")
    return {size: (math.log(seconds / size), 0.0) for size, seconds in sorted(step_s.items())}
