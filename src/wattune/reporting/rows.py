"""The rules side by side as rows of words: the terminal's tables and the report's are made of the same ones."""

from __future__ import annotations

from collections.abc import Callable

from wattune.records import AlgorithmChoice, Baseline, Comparison, ComparisonRow, Plan
from wattune.reporting import words

Row = tuple[str, ...]


def compared(comparison: Comparison, plus_minus: str = "±") -> list[Row]:
    """Of each rule: name, batch, setting, time, energy, peak, times wattune's, above the fastest, remark."""
    return [
        (
            row.rule,
            *_place(row),
            spread(words.seconds, row.time_s, row.time_std_s, plus_minus),
            spread(words.joules, row.energy_j, row.energy_std_j, plus_minus),
            words.watts(row.power_peak_w),
            words.times(row.speed_up),
            words.percent(row.above_fastest),
            words.remark(row),
        )
        for row in comparison.rows
    ]


def predicted(plan: Plan) -> list[Row]:
    """Of each baseline of a plan: name, batch, setting, time, energy, peak, times the pick's, remark."""
    return [
        (
            row.rule,
            *_place(row),
            words.seconds(row.predicted_s),
            words.joules(row.predicted_j),
            words.watts(row.predicted_peak_w),
            words.times(row.speed_up),
            words.remark(row),
        )
        for row in plan.baselines
    ]


def algorithms(plan: Plan) -> list[Row]:
    """Of each training algorithm of a plan: name, batch, setting, memory, samples, time, energy, times the pick's,
    remark."""
    return [
        (
            row.algorithm,
            *_place(row),
            words.memory(row.memory_bytes),
            words.times(row.relative_samples),
            words.seconds(row.predicted_s),
            words.joules(row.predicted_j),
            words.times(row.times_chosen),
            "" if row.feasible else row.why_not or "",
        )
        for row in plan.algorithms
    ]


def spread(
    unit: Callable[[float | None], str], mean: float | None, deviation: float | None, plus_minus: str = "±"
) -> str:
    """A mean with its standard deviation, where there is one."""
    return unit(mean) if mean is None or deviation is None else f"{unit(mean)} {plus_minus} {unit(deviation)}"


def _place(row: ComparisonRow | Baseline | AlgorithmChoice) -> tuple[str, str]:
    where = row.point if isinstance(row, Baseline) else words.place(row)
    return ("-", "-") if where is None else (words.batch(where), words.setting(where))
