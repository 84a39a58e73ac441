"""A cap that changes, with the interface that ``wattune_agent.guarded`` needs."""

from __future__ import annotations

from collections.abc import Callable

from wattune.cap import SupplyLosses
from wattune.cap_source import UNLIMITED_W, CapProblem, CapSource
from wattune.errors import InputError
from wattune.power.cap_clock import CapInRun, Clock, wall_clock
from wattune_agent.errors import BadRequest
from wattune_agent.kept import CapNow


class GuardedCap:
    """The limits of a program under a cap that changes; ``averaging_s``: time that a reading is averaged over.

    A lower limit that is announced is held before its time, so that neither its window nor the sensor contains power
    from before.

    Raises: InputError for a supply that is not known, a window that is shorter than the sensor's own, moments on the
    clock that begin later, and caps under which nothing may ever run.
    """

    def __init__(
        self, cap: CapSource, supply: SupplyLosses | None, averaging_s: float | None, *, clock: Clock = wall_clock
    ):
        if cap.is_announced:
            cap.highest()
        self._caps = CapInRun(cap, is_virtual=False, supply=supply, averaging_s=averaging_s, clock=clock)
        self._caps.begin(0.0)
        self.now = self._under(self._caps.watts(0.0))
        """The present cap."""
        self.held = self.now
        """The lowest cap of now and of the lead, which the guard holds."""

    def __str__(self) -> str:
        return str(self._caps.source)

    def look(self, time_s: float, lead_s: float, now_s: Callable[[], float]) -> CapProblem | None:
        """Look at the caps ``time_s`` seconds into the program, and ``lead_s`` ahead. ``now_s`` gives the time.

        Returns: as ``CapInRun.look``. Raises: BadRequest if a callable gives no watts.
        """
        try:
            problem = self._caps.look(now_s)
            watts = self._caps.watts(time_s)
            self.now = self._under(watts)
            self.held = self._under(min(watts, self._caps.least_w(time_s, lead_s)))
        except InputError as error:
            raise BadRequest(str(error)) from error
        return problem

    def is_last(self, time_s: float) -> bool:
        """True if the present cap holds for good."""
        return self._caps.is_last(time_s)

    def _under(self, watts: float) -> CapNow:
        limit = self._caps.limit(watts)
        asked_w = None if watts == UNLIMITED_W else watts
        return CapNow(asked_w, None if limit is None else limit.limit_w, limit is not None)
