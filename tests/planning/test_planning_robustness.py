"""A pick on other boards than the one that it was made for."""

from __future__ import annotations

import pytest
from tests.support.planning_tables import board, cell, curve

from wattune.cap import PowerCap
from wattune.planning import plan, robustness


def scaled(table, power, time=lambda cell: 1.0):
    """The same table with every power and time multiplied."""
    cells = [
        cell(one.batch_size, one.clock_mhz, one.step_s * time(one), one.power_peak_w * power, one.power_mean_w * power)
        for one in table.cells
    ]
    return table.model_copy(update={"cells": tuple(cells)})


def test_on_the_same_board_the_pick_is_the_best():
    table = board()
    found = robustness(plan(table, curve(), cap=PowerCap(4.0)), [table] * 3, curve())
    assert found.model_dump() == {
        "draws": 3, "best": 3, "best_batch_size": 3, "over_cap": 0, "unkept": 0, "mean_loss": 0.0
    }  # fmt: skip


def test_boards_that_draw_more_or_less_or_are_slow_at_one_batch_size():
    table = board()
    pick = plan(table, curve(), cap=PowerCap(4.0))
    slower = scaled(table, 1.0, time=lambda cell: 1.5 if cell.batch_size == pick.batch_size else 1.0)
    frugal = scaled(table, 0.5)
    hungry = scaled(table, 1.2)
    hopeless = scaled(table, 3.0)
    found = robustness(pick, [table, slower, frugal, hungry, hopeless], curve())
    assert (found.draws, found.over_cap, found.unkept) == (5, 2, 1)
    assert found.best == 1
    # What is lost is told by the board that is slow at the pick's batch size.
    best = plan(slower, curve(), cap=PowerCap(4.0))
    own = min(c.predicted_s for c in best.candidates if c.feasible and c.batch_size == pick.batch_size)
    losses = [own / best.predicted_s - 1]
    for other in (table, frugal, hungry):
        again = plan(other, curve(), cap=PowerCap(4.0))
        own = min(c.predicted_s for c in again.candidates if c.feasible and c.batch_size == pick.batch_size)
        losses.append(own / again.predicted_s - 1)
    assert found.mean_loss == pytest.approx(sum(losses) / 4)
    assert losses[0] > 0.05
