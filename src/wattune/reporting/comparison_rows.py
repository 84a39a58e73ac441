"""Rows of the tables that compare rules and algorithms, shared by the terminal and the report."""

from __future__ import annotations

from collections.abc import Callable

from wattune.records import AlgorithmChoice, Baseline, Comparison, ComparisonRow, Plan
from wattune.reporting import phrases

TableRow = tuple[str, ...]


def compared(comparison: Comparison, plus_minus: str = "±") -> list[TableRow]:
    """Rows of a comparison: rule, batch, setting, time, energy, peak, slowdown over wattune, above fastest, remark."""
    return [
        (
            row.rule,
            *_place(row),
            spread(phrases.seconds, row.time_s, row.time_std_s, plus_minus),
            spread(phrases.joules, row.energy_j, row.energy_std_j, plus_minus),
            phrases.watts(row.power_peak_w),
            phrases.times(row.speed_up),
            phrases.percent(row.above_fastest),
            phrases.remark(row),
        )
        for row in comparison.rows
    ]


def predicted(plan: Plan) -> list[TableRow]:
    """Rows of a plan's baselines: rule, batch, setting, time, energy, peak, slowdown over the pick, remark."""
    return [
        (
            row.rule,
            *_place(row),
            phrases.seconds(row.predicted_s),
            phrases.joules(row.predicted_j),
            phrases.watts(row.predicted_peak_w),
            phrases.times(row.speed_up),
            phrases.remark(row),
        )
        for row in plan.baselines
    ]


def algorithms(plan: Plan) -> list[TableRow]:
    """Rows of a plan's algorithms: name, batch, setting, memory, samples, time, energy, slowdown, remark."""
    return [
        (
            row.algorithm,
            *_place(row),
            phrases.memory(row.memory_bytes),
            phrases.times(row.relative_samples),
            phrases.seconds(row.predicted_s),
            phrases.joules(row.predicted_j),
            phrases.times(row.times_chosen),
            "" if row.feasible else row.why_not or "",
        )
        for row in plan.algorithms
    ]


def spread(
    unit: Callable[[float | None], str], mean: float | None, deviation: float | None, plus_minus: str = "±"
) -> str:
    """Write a mean, with its standard deviation if there is one."""
    return unit(mean) if mean is None or deviation is None else f"{unit(mean)} {plus_minus} {unit(deviation)}"


def _place(row: ComparisonRow | Baseline | AlgorithmChoice) -> tuple[str, str]:
    where = row.point
    return ("-", "-") if where is None else (phrases.batch(where), phrases.setting(where))
