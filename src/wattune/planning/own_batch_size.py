"""The pick of a table: the best point, or the user's own batch size unless another one is surely better."""

from __future__ import annotations

from typing import NamedTuple

from wattune.planning.confidence import feasible_log_times, log_cost
from wattune.planning.objective import Objective, time_of
from wattune.planning.table import Option, PlanningTable
from wattune.sample_efficiency.choice import OwnBatchSize, beside_own
from wattune.sample_efficiency.posterior import CurvePosterior


class TablePick(NamedTuple):
    """The point to train at, and why its batch size is the user's own or another one; None if that is unknown."""

    option: Option
    own: OwnBatchSize | None = None


def pick_from(objective: Objective) -> TablePick | None:
    """The best point under the limit, at the user's own batch size unless another is surely better.

    None if no point is feasible. Without an own batch size, without the runs of the efficiency record, and if no point
    with the own batch size is feasible and meets the goal's bound, it is the best point.
    """
    table = objective.table
    option, own_size = objective.best(), table.efficiency.own_batch_size
    if option is None or own_size is None:
        return None if option is None else TablePick(option)
    curve = table.posterior
    if curve is None or own_size in curve.lost:
        return TablePick(option)
    own_option = _best_own(objective, option, own_size, curve)
    if own_option is None:
        return TablePick(option)
    if objective.goal.is_time:
        costs = feasible_log_times(table, objective.limit)
    else:
        costs = {one.cell.batch_size: log_cost(objective, one) for one in (option, own_option)}
    own = beside_own(curve, costs, own=own_size, rival=option.cell.batch_size, exponent=objective.goal.exponent)
    return TablePick(option if own.choice == own.rival else own_option, own)


def _best_own(objective: Objective, option: Option, own_size: int, curve: CurvePosterior) -> Option | None:
    """The best point with the own batch size; None if there is none, or if only others meet the goal's bound.

    A slowdown is relative to the fastest of all points, unless its batch size is not surely faster than the own one.
    """
    goal = objective.goal
    if goal.max_slowdown is not None and objective.best(own_size) is not None:
        times = feasible_log_times(objective.table, objective.limit)
        rival = min(objective.options, key=time_of).cell.batch_size
        is_faster = beside_own(curve, times, own=own_size, rival=rival).choice != own_size
        return objective.best(own_size, in_bound=is_faster)
    return objective.best(own_size, in_bound=not goal.is_time and objective.meets(option))


def why_no_own(table: PlanningTable, pick: TablePick) -> str | None:
    """The reason why the pick was not compared with the user's own batch size.

    None if it was, if it has that batch size, or if there is none.
    """
    own = table.efficiency.own_batch_size
    if own is None or pick.own is not None or pick.option.cell.batch_size == own:
        return None
    return (
        f"your batch size {own} cannot be compared with this one: no run at it reached the target, or no point of it "
        "is feasible and meets the bound of the goal"
    )
