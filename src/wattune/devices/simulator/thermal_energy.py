"""Exact energy of a simulated board."""

from __future__ import annotations

from bisect import bisect_right


class Energy:
    """Joules over time, exactly: the corners of a piecewise linear curve, as far back as is needed."""

    def __init__(self, keep_s: float, power_w: float):
        self._keep_s = keep_s
        # The board is assumed to have been at rest before it was opened.
        self._times_s = [-keep_s, 0.0]
        self._joules = [-keep_s * power_w, 0.0]

    def keep(self, seconds: float) -> None:
        """Keep at least this much of the past from now on."""
        if 2 * seconds > self._keep_s:
            self._keep_s = 2 * seconds

    @property
    def total_j(self) -> float:
        """Joules since the device was opened."""
        return self._joules[-1]

    def add(self, until_s: float, power_w: float) -> None:
        """Extend the curve to ``until_s`` at constant power."""
        begin_s = self._times_s[-1]
        if until_s <= begin_s:
            return
        self._times_s.append(until_s)
        self._joules.append(self._joules[-1] + power_w * (until_s - begin_s))
        if len(self._times_s) > 4096:
            self._forget()

    def mean_w(self, begin_s: float, end_s: float) -> float:
        """Mean power over a span that is still kept; the power at ``end_s`` if the span is empty."""
        if end_s > begin_s:
            return (self._at(end_s) - self._at(begin_s)) / (end_s - begin_s)
        index = self._corner(end_s)
        times_s, joules = self._times_s, self._joules
        return (joules[index] - joules[index - 1]) / (times_s[index] - times_s[index - 1])

    def state(self) -> list[list[float]]:
        """The kept corners, as JSON values."""
        self._forget()
        return [list(self._times_s), list(self._joules)]

    def load(self, state: list[list[float]]) -> None:
        """Continue from ``state``."""
        self._times_s, self._joules = list(state[0]), list(state[1])

    def _at(self, time_s: float) -> float:
        index = self._corner(time_s)
        times_s, joules = self._times_s, self._joules
        share = (time_s - times_s[index - 1]) / (times_s[index] - times_s[index - 1])
        return joules[index - 1] + share * (joules[index] - joules[index - 1])

    def _corner(self, time_s: float) -> int:
        # The corner at the end of the straight piece that time_s lies in.
        return min(max(bisect_right(self._times_s, time_s), 1), len(self._times_s) - 1)

    def _forget(self) -> None:
        first = max(0, bisect_right(self._times_s, self._times_s[-1] - self._keep_s) - 2)
        del self._times_s[:first], self._joules[:first]
