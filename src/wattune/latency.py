"""The latency bound of an inference service that runs on the board beside training."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from wattune.errors import InputError

_TIME: Final = re.compile(r"(?P<number>\d+\.?\d*|\.\d+)\s*(?P<unit>us|ms|s)", re.ASCII)
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class LatencyBound:
    """The time within which each request is to be answered, from its arrival on.

    ``service_s``: seconds that the service itself takes for a request, alone on the board at its highest clocks. What
    is left of ``within_s`` is the slack, which one micro-batch has to fit. Raises: InputError.
    """

    within_s: float
    service_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("the latency bound", self.within_s, "above"),
            ("service_s", self.service_s, "from"),
        ):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not is_number or value < 0 or (least == "above" and not value):
                raise InputError(name, value=value, allowed=f"seconds, {least} 0")
        if self.service_s >= self.within_s:
            raise InputError(
                "the service alone takes longer than the latency bound",
                value=f"{1e3 * self.service_s:.4g} ms",
                allowed=f"less than {1e3 * self.within_s:.4g} ms",
            )

    def slack_s(self, clock_share: float = 1.0) -> float:
        """Seconds that a request can wait, with clocks at this share of their highest values.

        The service is taken to slow down as the clocks do, which is the most that it can.
        """
        return self.within_s - self.service_s / clock_share


def parse_latency(text: str, *, name: str) -> float:
    """Seconds from "50ms", "0.2s" or "800us"; ``name`` is what errors call it. Raises: InputError."""
    match = _TIME.fullmatch(text.strip())
    value = math.nan if match is None else float(match["number"]) * _SECONDS[match["unit"]]
    if not 0 < value < math.inf:
        raise InputError(name, value=text, allowed="a time above zero such as 50ms or 0.2s")
    return value
