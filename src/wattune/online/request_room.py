"""Room for an inference service beside a session: requests first, and micro-batches that do not take too long."""

from __future__ import annotations

import math
from typing import Any

from wattune.errors import InputError
from wattune.power.beside import Beside
from wattune.power.capped_run import CappedRun
from wattune.power.request_queue import RequestQueue

GROWTH = 1.1
"""Factor by which micro-batches could grow before they do, since times of steps scatter."""


class RequestRoom:
    """Requests of ``queue`` go first in a session's run; one micro-batch takes at most ``within_s`` seconds (None: any
    time), by what the latest step took.

    Raises: InputError for a time that is not positive.
    """

    def __init__(self, capped: CappedRun, queue: RequestQueue, within_s: float | None):
        is_number = isinstance(within_s, (int, float)) and not isinstance(within_s, bool)
        if within_s is not None and not (is_number and 0 < within_s < math.inf):
            raise InputError("within_s", value=within_s, allowed="seconds above 0, or None")
        self.beside = Beside(capped, queue)
        self.waited_s = 0.0
        """Seconds of the present step that were left to requests."""
        self._within_s = within_s
        self._largest: int | None = None

    def make(self) -> bool:
        """Let the requests go first. Returns: True if there were any. Raises: SafetyStop, DeviceError."""
        seconds = self.beside.make_room()
        self.waited_s += seconds
        return seconds > 0

    def micro(self, wanted: int) -> int:
        """The micro-batch size to use in place of ``wanted``."""
        return wanted if self._largest is None else min(wanted, self._largest)

    def learn(self, micro: int, seconds: float) -> None:
        """Take in that a micro-batch of this size took so long.

        Its time is a + c m for m samples, with a > 0: from below, m grows in proportion to the time without exceeding
        it; from above it is reached within a few steps.
        """
        if self._within_s is None or seconds <= 0:
            return
        ratio = self._within_s / seconds
        if ratio < 1:
            self._largest = max(1, min(micro - 1, int(micro * ratio)))
        elif self._largest is not None and micro == self._largest and ratio > GROWTH:
            self._largest = max(micro + 1, int(micro * ratio))

    @property
    def note(self) -> str | None:
        """A note on the size of the micro-batches, if it is limited."""
        if self._largest is None or self._within_s is None:
            return None
        return (
            f"micro-batches had at most {self._largest} samples in the end, so that requests wait "
            f"{1e3 * self._within_s:.4g} ms or less for one; points with larger ones were measured with such as well"
        )

    def fields(self) -> dict[str, Any]:
        """Fields of a record."""
        return self.beside.fields()
