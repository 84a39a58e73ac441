"""The cheapest times to work, against linear programming."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from wattune.planning.grains import GRAIN_S, Accumulated, Work, cheapest

HOUR_S = 3600.0


def work(values, *, waiting=0.0, spacing_s=HOUR_S, rates=None, watts=None):
    """Work under these values, ``waiting`` watts at rest; by default a sample a second, at 1 W."""
    edges_s = np.arange(len(values)) * spacing_s
    values = np.array(values, dtype=float)
    rates = np.ones(len(values)) if rates is None else np.array(rates, dtype=float)
    watts = np.where(rates > 0, np.ones(len(values)) if watts is None else np.array(watts), waiting)
    return Work(
        Accumulated(edges_s, rates),
        Accumulated(edges_s, waiting * values),
        Accumulated(edges_s, (watts - waiting) * values),
    )


@given(
    st.lists(st.tuples(st.floats(0.1, 50), st.floats(0.001, 9) | st.just(0.0)), min_size=1, max_size=8),
    st.floats(0, 500),
    st.floats(0, 500),
)
def test_an_integral_and_its_inverse(pieces, first_s, second_s):
    ends_s = np.cumsum([length for length, _ in pieces])
    total = Accumulated(np.concatenate([[0.0], ends_s[:-1]]), np.array([rate for _, rate in pieces]))
    low_s, high_s = sorted((first_s, second_s))
    by_piece = sum(
        rate * max(0.0, min(high_s, end_s if index + 1 < len(pieces) else np.inf) - max(low_s, end_s - length))
        for index, ((length, rate), end_s) in enumerate(zip(pieces, ends_s, strict=True))
    )
    assert total.at(high_s) - total.at(low_s) == pytest.approx(by_piece, abs=1e-6)
    amount = total.at(high_s)
    if amount > 1e-3:
        earliest_s, latest_s = float(total.when(amount)), float(total.when(amount, latest=True))
        assert earliest_s <= high_s + 1e-6
        assert earliest_s <= latest_s + 1e-6
        assert total.at(earliest_s) == pytest.approx(amount)
        assert total.at(latest_s) == pytest.approx(amount)
    if not pieces[-1][1]:
        assert total.when(total.at(1e6) + 1.0) == np.inf


PIECES = st.tuples(st.floats(0, 500), st.floats(0.2, 3.0) | st.just(0.0), st.floats(1.0, 9.0))


@given(
    st.lists(PIECES, min_size=2, max_size=8).filter(lambda pieces: pieces[-1][1] > 0),
    st.floats(0.05, 1.2),
    st.sampled_from([GRAIN_S, 2.5 * GRAIN_S, HOUR_S]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_no_other_times_are_cheaper(pieces, share, spacing_s, waiting, is_even):
    values, rates, watts = ([piece[index] for piece in pieces] for index in range(3))
    if is_even:  # one constant cap
        rates, watts = [1.0] * len(pieces), [2.0] * len(pieces)
    board = work(values, waiting=waiting, spacing_s=spacing_s, rates=rates, watts=watts)
    until_s = spacing_s * len(pieces)
    samples = share * float(board.samples.at(until_s))
    times = cheapest(board, samples, until_s)
    assert board.samples.over(times) == pytest.approx(samples)
    assert times[0].from_s >= 0
    assert all(before.until_s < after.from_s for before, after in itertools.pairwise(times))
    account = board.account(times)
    at_once_s = float(board.samples.when(samples))
    at_once = board.waiting.at(at_once_s) + board.working.at(at_once_s)
    assert account <= at_once * (1 + 1e-8) + 1e-6
    if share >= 1:
        return
    assert times[-1].until_s <= until_s + 1e-6
    for count in range(1, len(pieces) + 1):  # training ends with each of the pieces in turn
        most = spacing_s * np.array(rates[:count])
        if most.sum() <= samples:
            continue
        costs = [
            (w - waiting) * v / rate if rate else 0.0
            for v, rate, w in zip(values[:count], rates[:count], watts[:count], strict=True)
        ]
        least = linprog(costs, A_eq=[np.ones(count)], b_eq=[samples], bounds=[(0, one) for one in most])
        assert account <= least.fun + board.waiting.at(count * spacing_s) + 1e-6 * (1 + abs(account))
    if not waiting:
        assert account == pytest.approx(least.fun, rel=1e-6, abs=1e-3)


def test_of_times_that_take_the_same_the_earliest_is_chosen():
    forecast = work([420, 400, 90, 250, 400], spacing_s=30.0)
    for need_s in (0.8317074, 1 / 3, 7.1):
        assert cheapest(forecast, need_s, 119.0) == ((60.0, pytest.approx(60.0 + need_s)),)
    assert cheapest(work([300] * 30), 7 * HOUR_S + 1, 29 * HOUR_S) == ((0.0, 7 * HOUR_S + 1),)


def test_a_forecast_of_each_second_of_a_day_is_planned_by():
    values = [100.0 + (second // 60 * 7919) % 300 for second in range(86400)]  # quadratic, this takes hours
    times = cheapest(work(values, waiting=0.05, spacing_s=1.0), 8 * HOUR_S, 24 * HOUR_S)
    assert sum(one.length_s for one in times) == pytest.approx(8 * HOUR_S)
