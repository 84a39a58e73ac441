"""A cap that changes, with the interface that ``wattune_agent.guarded`` needs."""

from __future__ import annotations

from collections.abc import Callable

from wattune.cap import SupplyLosses
from wattune.cap_source import UNLIMITED_W, CapProblem, CapSource
from wattune.errors import InputError
from wattune.power.cap_clock import CapInRun, Clock, jump_text, wall_clock
from wattune_agent.cap_record import CapNow
from wattune_agent.errors import BadRequest


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
        self._supply, self._averaging_s = supply, averaging_s
        if cap.is_announced:
            cap.highest()
        self._caps = CapInRun(cap, is_virtual=False, clock=clock)
        self._caps.begin(0.0)
        self._problem: CapProblem | None = None
        self._limits: dict[float, CapNow] = {}
        self.now = self._at(0.0)
        """The present cap."""
        self.held = self.now
        """The lowest cap of now and of the lead, which the guard holds."""

    def __str__(self) -> str:
        return str(self._caps.source)

    def look(self, time_s: float, lead_s: float, now_s: Callable[[], float]) -> list[tuple[str, str]]:
        """Look at the caps ``time_s`` seconds into the program, and ``lead_s`` ahead. ``now_s`` gives the time.

        Returns: kind and text of what happened: the cap could not be read, or the clock on the wall was set.
        Raises: BadRequest if a callable gives no watts.
        """
        told = []
        if jump_s := self._caps.look(now_s):
            told.append(("clock jumped", jump_text(jump_s)))
        if (problem := self._caps.source.problem) != self._problem:
            self._problem = problem
            if problem is not None:
                told.append((problem.kind, problem.text))
        try:
            now, coming_s = self._at(time_s), self._caps.changes_s(time_s, lead_s)
            self.now, self.held = now, min([now, *map(self._at, coming_s)], key=lambda cap: cap.most_w)
        except InputError as error:
            raise BadRequest(str(error)) from error
        return told

    def is_last(self, time_s: float) -> bool:
        """True if the present cap holds for good."""
        return self._caps.source.is_announced and self._caps.next_change_s(time_s) is None

    def _at(self, time_s: float) -> CapNow:
        watts = self._caps.watts(time_s)
        if watts not in self._limits:
            limit = self._caps.source.limit(watts, self._supply, self._averaging_s)
            asked_w, limit_w = None if watts == UNLIMITED_W else watts, None if limit is None else limit.limit_w
            self._limits[watts] = CapNow(asked_w, limit_w, limit is not None)
        return self._limits[watts]
