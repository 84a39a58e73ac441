"""How far a pick holds where the board is not quite the one that it was made for."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import mean

from wattune.planning.selection import Limit, fastest, rank
from wattune.planning.table import Table, place_of
from wattune.records import EfficiencyCurve, Plan, ProfileTable, Robustness


def robustness(plan: Plan, tables: Iterable[ProfileTable], efficiency: EfficiencyCurve) -> Robustness:
    """The pick of ``plan`` among the exact tables of other boards, one table a board."""
    limit, place = Limit(plan.cap_w, plan.margin_w), place_of(plan)
    draws = best = best_batch_size = over_cap = unkept = 0
    losses: list[float] = []
    for profile in tables:
        draws += 1
        table = Table(profile, efficiency)
        pick, chosen = table.at.get(place), fastest(table.rows, limit)
        over_cap += pick is None or not limit.keeps(pick.peak_w)
        if chosen is None:
            unkept += 1
            continue
        best += chosen.place == place
        best_batch_size += chosen.place[0] == plan.batch_size
        own = [
            option for option in table.at.values() if option.place[0] == plan.batch_size and limit.keeps(option.peak_w)
        ]
        if own:
            losses.append(rank(min(own, key=rank))[0] / rank(chosen)[0] - 1)
    return Robustness(
        draws=draws,
        best=best,
        best_batch_size=best_batch_size,
        over_cap=over_cap,
        unkept=unkept,
        mean_loss=mean(losses) if losses else None,
    )
