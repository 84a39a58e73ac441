"""A simulated board on real time, so that profiling takes as long as on a physical board."""

from __future__ import annotations

import time

from wattune.devices import SimulatedDevice
from wattune.devices.simulator.board_file import builtin_board

OWED_S = 0.01
"""It sleeps once so much has come together."""


class RealTime(SimulatedDevice):
    """``seconds``: of real time for each of the board's."""

    def __init__(self, board: str, *, seconds: float = 1.0):
        super().__init__(builtin_board(board))
        self._seconds = seconds
        self._owed_s = 0.0

    def _advance(self, until_s: float, power_w: float) -> None:
        # Only what passes on the board is slept for: between two steps its program may do something else.
        self._owed_s += self._seconds * max(0.0, until_s - self._now_s)
        super()._advance(until_s, power_w)
        if self._owed_s > OWED_S:
            begin_s = time.monotonic()
            time.sleep(self._owed_s)
            self._owed_s -= time.monotonic() - begin_s
