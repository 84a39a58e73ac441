"""The cheapest times to work until a deadline, where progress, power and price change over time.

Time is cut into grains at the changes. For each end of the work, the grains that cost least per sample are the best
ones, one of them in part: the fractional knapsack problem.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattune.intensity import Stretch

GRAIN_S: Final = 900.0
"""Shortest time, in seconds, that is chosen or left out as a whole: each pause costs a checkpoint."""

Array = NDArray[np.float64]


class Accumulated:
    """Integral over time of a rate that is constant between ``edges_s``, the first at 0; the last rate holds for good.

    ``edges_s``, ``rates``: (n,).
    """

    def __init__(self, edges_s: Array, rates: Array):
        self.edges_s, self.rates = edges_s, rates
        self._totals = np.concatenate([[0.0], np.cumsum(rates[:-1] * np.diff(edges_s))])

    def at(self, time_s: float | Array) -> Any:
        """The integral from 0 to a time, or to each of an array of times."""
        index = np.searchsorted(self.edges_s, time_s, "right") - 1
        return self._totals[index] + self.rates[index] * (time_s - self.edges_s[index])

    def over(self, stretches: Iterable[Stretch]) -> float:
        """The integral over all of these times."""
        return float(sum(self.at(one.until_s) - self.at(one.from_s) for one in stretches))

    def when(self, amount: float | Array, *, latest: bool = False) -> Any:
        """The earliest time, or the ``latest``, at which the integral is ``amount``; infinite if it never is.

        No rate may be negative.
        """
        index = np.maximum(np.searchsorted(self._totals, amount, "right" if latest else "left") - 1, 0)
        missing = amount - self._totals[index]
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.edges_s[index] + np.where(missing > 0, missing / self.rates[index], 0.0)


class Work(NamedTuple):
    """Samples that are learned from while working, what waiting costs, and what working costs above that."""

    samples: Accumulated
    waiting: Accumulated
    working: Accumulated

    def account(self, stretches: tuple[Stretch, ...]) -> float:
        """Cost of work at these times, with the waiting until their end."""
        return float(self.waiting.at(stretches[-1].until_s)) + self.working.over(stretches)


def cheapest(work: Work, samples: float, until_s: float) -> tuple[Stretch, ...]:
    """The times from 0 to ``until_s`` at which ``samples`` samples cost least, in their order.

    Times are chosen among grains of ``GRAIN_S`` or more, or are one time without a pause, such as the time that begins
    at once. Of times that cost the same, the earliest are chosen. If there is no time to choose from, work begins at
    once.
    """
    at_once_s = float(work.samples.when(samples))
    if at_once_s >= until_s:
        return (Stretch(0.0, at_once_s),)
    options = [
        tuple(_without_pauses(one, work.samples) for one in stretches)
        for stretches in (_in_grains(work, samples, until_s), _in_one(work, samples, until_s))
    ]
    return min(options, key=lambda stretches: (_rounded(work.account(stretches)), len(stretches), stretches))


def _without_pauses(stretch: Stretch, samples: Accumulated) -> Stretch:
    """The time without a beginning and an end in which nothing is learned from."""
    begin_s = float(samples.when(samples.at(stretch.from_s), latest=True))
    return Stretch(max(stretch.from_s, begin_s), min(stretch.until_s, float(samples.when(samples.at(stretch.until_s)))))


def _in_one(work: Work, samples: float, until_s: float) -> tuple[Stretch, ...]:
    """The cheapest time without a pause, which begins or ends at a change, or is at an end of what is allowed."""
    edges_s = np.append(work.samples.edges_s[work.samples.edges_s < until_s], until_s)
    done = work.samples.at(edges_s)
    begins_s = np.concatenate([edges_s, work.samples.when(done[done >= samples] - samples, latest=True)])
    begins_s = np.unique(begins_s[begins_s <= begins_s[-1]])  # the last one ends at `until_s`
    ends_s = work.samples.when(np.minimum(work.samples.at(begins_s) + samples, done[-1]))
    costs = work.waiting.at(ends_s) + work.working.at(ends_s) - work.working.at(begins_s)
    index = np.argmax(costs <= costs.min() + 1e-9 * abs(costs.min()))  # the first of equals
    return (Stretch(float(begins_s[index]), float(ends_s[index])),)


def _in_grains(work: Work, samples: float, until_s: float) -> tuple[Stretch, ...]:
    cuts_s = _cuts(work.samples.edges_s, until_s)
    ends_s = np.array(cuts_s)
    done, costs = np.diff(work.samples.at(ends_s)), np.diff(work.working.at(ends_s))
    # Rounded, so that grains that cost the same are the same, and the earliest are taken.
    prices = [_rounded(cost / n) if n > 0 else np.inf for cost, n in zip(costs, done, strict=True)]
    count = _best_end(done, prices, work.waiting.at(ends_s[1:]), samples)
    chosen: dict[int, Stretch] = {}
    for index in sorted(range(count), key=lambda index: (prices[index], index)):
        grain = Stretch(cuts_s[index], cuts_s[index + 1])
        if done[index] >= samples:  # the part beside another chosen one makes no pause
            at_end = index - 1 not in chosen and index + 1 in chosen
            begin_s = (
                work.samples.when(work.samples.at(grain.until_s) - samples, latest=True) if at_end else grain.from_s
            )
            end_s = grain.until_s if at_end else work.samples.when(work.samples.at(grain.from_s) + samples)
            chosen[index] = Stretch(float(begin_s), float(end_s))
            break
        chosen[index] = grain
        samples -= done[index]
    return _joined(chosen[index] for index in sorted(chosen))


def _cuts(edges_s: Array, until_s: float) -> list[float]:
    """Ends of the grains: the changes until ``until_s``, and times in between; the last grain may be shorter."""
    cuts_s = [0.0]
    for edge_s in (*map(float, edges_s[(edges_s > 0) & (edges_s < until_s)]), until_s):
        parts = int((edge_s - cuts_s[-1]) // GRAIN_S)
        if parts:
            cuts_s += [cuts_s[-1] + GRAIN_S * part for part in range(1, parts)] + [edge_s]
    return cuts_s if cuts_s[-1] == until_s else [*cuts_s, until_s]


def _best_end(done: Array, prices: list[float], waiting: Array, samples: float) -> int:
    """The number of grains, from the first on, of which the cheapest ones have the least account.

    With more grains to choose from the work gets cheaper, and the wait for its end longer.
    """
    chosen: list[tuple[float, float]] = []  # the most expensive grain first
    have, cost, best = 0.0, 0.0, (np.inf, len(prices))
    for count, (more, price) in enumerate(zip(done, prices, strict=True), start=1):
        if more <= 0:
            continue
        heappush(chosen, (-price, more))
        have, cost = have + more, cost + price * more
        while have - chosen[0][1] >= samples:
            expensive, left_out = heappop(chosen)
            have, cost = have - left_out, cost + expensive * left_out
        if have >= samples:
            part = cost + chosen[0][0] * (have - samples)  # a part of the most expensive one is not needed
            best = min(best, (_rounded(part + waiting[count - 1]), count))
    return best[1]


def _rounded(account: float) -> float:
    """The account without its last digits, so that times that cost the same are the same."""
    return float(f"{account:.9g}")


def _joined(stretches: Iterable[Stretch]) -> tuple[Stretch, ...]:
    joined: list[Stretch] = []
    for stretch in stretches:
        if joined and joined[-1].until_s == stretch.from_s:
            joined[-1] = Stretch(joined[-1].from_s, stretch.until_s)
        else:
            joined.append(stretch)
    return tuple(joined)
