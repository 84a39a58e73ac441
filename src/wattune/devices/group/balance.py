"""Settings of the members of a group that draw least at the pace of the slowest.

Members of a data-parallel job compute the same work in every step, and the slowest sets the pace: watts that make
another one faster than that are wasted. The members' times are observed, never assumed to follow from their watts.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from wattune.devices.base import Knob

SLACK = 0.01
"""Share of the pace by which a member may be predicted to be slower than it."""

BAND = 0.01
"""Share of the pace by which a prediction has to miss a limit before a setting that holds is left for another one."""

WEIGHT = 0.5
"""Weight of a new observation at a setting that was observed before."""

RECENT = 5
"""Steps of a stretch at the same settings whose median is an observation; the first few are one each, as soon as there
are any."""

STALE = 0.03
"""Share by which a setting that draws more may seem slower than one that draws less before its observation is dropped
as older than the board's present state."""


class Balance:
    """Settings of one knob for each member, at levels that are the values of the knob that has most.

    At a level each member may use the values of its knob up to the same share of them, and has the lowest at which it
    is as fast as the slowest member. ``widest``: the member whose values the levels are.

    The model of a step's time is ``T_j(setting, work) = c_work * g_j(setting)``. ``g_j`` is learned by ``observe``: it
    is linear in 1 / value between observed settings, and proportional to 1 / value beyond them, which no clock and no
    power limit surpasses. Members that were never observed count as equal at their top settings.
    """

    def __init__(self, knobs: Sequence[Knob]):
        self._values = [knob.by_power for knob in knobs]
        self.widest = max(range(len(knobs)), key=lambda member: len(self._values[member]))
        self._slow = [
            {value: 1 / value if knob.power_rises else value for value in knob.values} for knob in knobs
        ]  # a number that time is proportional to, at most
        self._relative_s: list[dict[float, float]] = [{} for _ in knobs]  # g_j of observed settings
        self._works: dict[Hashable, float] = {}  # c of each work
        self._stretch: tuple[Hashable, tuple[float, ...]] | None = None
        self._recent: list[deque[float]] = []
        self._steps = 0  # of the stretch

    # ------------------------------------------------------------------------------------------------------- learning

    def observe(self, work: Hashable, values: Sequence[float], seconds: Sequence[float]) -> None:
        """Learn from a step of this work: each member's value and its own computing time, without waiting.

        The first step of a stretch at the same work and values does not count: it may hold what comes once only.
        """
        stretch = work, tuple(values)
        if stretch != self._stretch:
            self._stretch, self._steps = stretch, 0
            self._recent = [deque(maxlen=RECENT) for _ in values]
            return
        self._steps += 1
        for recent, own_s in zip(self._recent, seconds, strict=True):
            recent.append(own_s)
        if self._steps > RECENT and self._steps % RECENT:
            return
        times_s = [median(recent) for recent in self._recent]
        if self._tells_nothing(work, values, times_s):
            return
        scale = self._works[work] = self._scale(work, values, times_s)
        for member, (value, time_s) in enumerate(zip(values, times_s, strict=True)):
            self._learn(member, value, time_s / scale)

    def _scale(self, work: Hashable, values: Sequence[float], times_s: Sequence[float]) -> float:
        """The work's factor, from the members whose times are known at these values, or at others."""
        before = self._works.get(work)
        observed = self._relative_s
        known = [member for member, value in enumerate(values) if value in observed[member]]
        if before is not None and not known:
            return before
        known = known or [member for member, cells in enumerate(observed) if cells]
        if not known:
            return 1.0
        logs = [math.log(times_s[member] / self.time(member, values[member])) for member in known]
        now = math.exp(fmean(logs))
        return now if before is None else before ** (1 - WEIGHT) * now**WEIGHT

    def _tells_nothing(self, work: Hashable, values: Sequence[float], times_s: Sequence[float]) -> bool:
        """True for a new work at values that are all new, if the members' times differ as predicted.

        Work and values explain such times equally well. What was predicted would then count as observed, and a clock
        could seem as fast as a higher one.
        """
        observed = self._relative_s
        if work in self._works or any(value in cells for cells, value in zip(observed, values, strict=True)):
            return False
        ratios = [times_s[member] / self.time(member, values[member]) for member, cells in enumerate(observed) if cells]
        return len(ratios) == len(values) and max(ratios) <= (1 + BAND) * min(ratios)

    def _learn(self, member: int, value: float, relative_s: float) -> None:
        cells, order = self._relative_s[member], self._values[member].index
        if (before_s := cells.get(value)) is not None:
            relative_s = before_s + WEIGHT * (relative_s - before_s)
        cells[value] = relative_s
        for other, other_s in list(cells.items()):
            # A board that throttles, or is cool again, differs from what was seen at its other settings.
            faster = order(other) > order(value) and other_s > relative_s * (1 + STALE)
            slower = order(other) < order(value) and other_s * (1 + STALE) < relative_s
            if faster or slower:
                del cells[other]

    # ------------------------------------------------------------------------------------------------------ predicting

    def time(self, member: int, value: float) -> float:
        """Predicted time of a step at this value, relative to those of the other members and values."""
        slow, cells = self._slow[member], self._relative_s[member]
        if not cells:
            return slow[value] / slow[self._values[member][-1]]
        points = [(slow[other], cells[other]) for other in reversed(self._values[member]) if other in cells]
        highest_s = 0.0  # noise must not make less power faster
        for index, (at, time_s) in enumerate(points):
            highest_s = max(highest_s, time_s)
            points[index] = (at, highest_s)
        return _on_lines(points, slow[value])

    # -------------------------------------------------------------------------------------------------------- choosing

    def table(self, held: Mapping[float, tuple[float, ...]] | None = None) -> dict[float, tuple[float, ...]]:
        """Level -> the values of all members, ascending by power, from the present predictions.

        A value of ``held`` stays unless it is clearly too slow, or a lower one clearly fast enough, so that noise
        moves nothing.
        """
        levels = self._values[self.widest]
        rows: dict[float, tuple[float, ...]] = {}
        before = tuple(values[0] for values in self._values)
        for index, level in enumerate(levels):
            share = index / max(1, len(levels) - 1)
            highest = [values[round(share * (len(values) - 1))] for values in self._values]
            pace_s = max(self.time(member, value) for member, value in enumerate(highest))
            kept = highest if held is None else held[level]
            row = [self._fitting(member, pace_s, own) for member, own in enumerate(kept)]
            # Upwards every member draws at least as much: what is held from one time may cross what is from another.
            least = zip(row, before, strict=True)
            before = tuple(max(two, key=values.index) for values, two in zip(self._values, least, strict=True))
            rows[level] = before
        return rows

    def _fitting(self, member: int, pace_s: float, held: float) -> float:
        slack = SLACK if self._relative_s[member] else 1e-9
        if self.time(member, held) > (1 + slack + BAND) * pace_s:
            return self._least(member, (1 + slack) * pace_s)
        lower = self._least(member, (1 + slack - BAND) * pace_s)
        return min(held, lower, key=self._values[member].index)

    def _least(self, member: int, most_s: float) -> float:
        values = self._values[member]
        return next((value for value in values if self.time(member, value) <= most_s), values[-1])

    # ---------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """The learned times, as JSON values."""
        return {
            "relative_s": [[list(cell) for cell in cells.items()] for cells in self._relative_s],
            "works": [[list(work) if isinstance(work, tuple) else work, c] for work, c in self._works.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``."""
        self._relative_s = [dict(cells) for cells in state["relative_s"]]
        self._works = {tuple(work) if isinstance(work, list) else work: c for work, c in state["works"]}
        self._stretch = None


def _on_lines(points: Sequence[tuple[float, float]], at: float) -> float:
    """Time on straight lines between points (slowness, time), ascending; proportional to slowness beyond them."""
    for (low, low_s), (high, high_s) in pairwise(points):
        if low <= at <= high:
            return low_s + (high_s - low_s) * (at - low) / (high - low)
    edge, edge_s = points[0] if at < points[0][0] else points[-1]
    return edge_s * at / edge
