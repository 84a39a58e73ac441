"""A cap that changes, with the interface that ``wattune_agent.guarded`` needs."""

from __future__ import annotations

from collections.abc import Callable

from wattune.cap import SupplyLosses
from wattune.cap_source import UNLIMITED_W, CapProblem, CapSource
from wattune.errors import InputError
from wattune.power.cap_clock import CapInRun, Clock, jump_text, wall_clock
from wattune_agent.errors import BadRequest
from wattune_agent.moving_limit import CapNow


class GuardedCap:
    """The limits of a program under a cap that changes; ``averaging_s``: time that a reading is averaged over.

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
        self._limit(self._caps.watts(0.0))  # which refuses what does not depend on the watts

    @property
    def is_announced(self) -> bool:
        """True if all changes are known beforehand."""
        return self._caps.source.is_announced

    def at(self, time_s: float) -> CapNow:
        """The cap ``time_s`` seconds into the program. Raises: BadRequest if a callable gives no watts."""
        try:
            watts = self._caps.watts(time_s)
            if watts not in self._limits:
                self._limits[watts] = self._limit(watts)
            return self._limits[watts]
        except InputError as error:
            raise BadRequest(str(error)) from error

    def next_change_s(self, time_s: float) -> float | None:
        """The next change after ``time_s`` that is known beforehand; None if there is none."""
        return self._caps.next_change_s(time_s)

    def events(self, now_s: Callable[[], float]) -> list[tuple[str, str]]:
        """Kind and text of what happened to the cap: it could not be read, or the clock on the wall was set."""
        told = []
        if jump_s := self._caps.look(now_s):
            told.append(("clock jumped", jump_text(jump_s)))
        if (problem := self._caps.source.problem) != self._problem:
            self._problem = problem
            if problem is not None:
                told.append((problem.kind, problem.text))
        return told

    def _limit(self, watts: float) -> CapNow:
        limit = self._caps.source.limit(watts, self._supply, self._averaging_s)
        return CapNow(
            None if watts == UNLIMITED_W else watts, None if limit is None else limit.limit_w, limit is not None
        )
