"""Charts and tables of every rule's pick, including those without a gain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wattune.records import AlgorithmChoice, Baseline, Comparison, ComparisonRow, Plan
from wattune.reporting import phrases
from wattune.reporting.charts import Axis, Bars, Chart, Panel, Values
from wattune.reporting.page import Figure, Table


def bars(comparison: Comparison) -> Figure | None:
    """Mean time and energy of every rule with the standard deviation over seeds. None if no rule has a time."""
    rows = [row for row in reversed(comparison.rows) if row.time_s is not None]
    if not rows:
        return None
    times = _bars(rows, [row.time_s for row in rows], [row.time_std_s for row in rows], phrases.seconds)
    energies = _bars(rows, [row.energy_j for row in rows], [row.energy_std_j for row in rows], phrases.joules)
    rules = Axis(categories=[row.rule for row in rows])
    panels = [
        Panel([times], Axis("time to target (s)", from_zero=True), rules, span=(0, 0.47)),
        Panel([energies], Axis("energy (J)", from_zero=True), span=(0.53, 1)),
    ]
    return Figure(
        "comparison",
        "Time and energy to target",
        phrases.origin(comparison=comparison.provenance.kind),
        Chart(panels),
        note=f"Mean and standard deviation over {_seeds(comparison)}. {comparison.method}",
        height=80 + 36 * len(rows),
        wide=True,
    )


VERSUS = "vs. wattune: time divided by the time of wattune's pick"


def comparison_rows(comparison: Comparison) -> Table:
    """The comparison as a table, including rules without a result."""
    rows = [
        (
            row.rule,
            *_place(row),
            spread(phrases.seconds, row.time_s, row.time_std_s),
            phrases.times(row.speed_up),
            phrases.joules(row.energy_j),
            phrases.watts(row.power_peak_w),
            phrases.percent(row.above_fastest),
            phrases.remark(row),
        )
        for row in comparison.rows
    ]
    head = ("rule", "batch", "setting", "time", "vs. wattune", "energy", "peak power", "above fastest", "")
    origin = phrases.origin(comparison=comparison.provenance.kind)
    note = f"{VERSUS}; mean over {_seeds(comparison)}"
    return _table("All rules", origin, head, rows, phrases.OWN_RULE, note, extra=2)


def baseline_rows(plan: Plan, origin: str) -> Table:
    """The picks of the other rules, with the plan's predictions."""
    own = Baseline(
        **plan.point.fields(),
        rule=phrases.OWN_RULE,
        feasible=True,
        predicted_s=plan.predicted_s,
        predicted_j=plan.predicted_j,
        predicted_peak_w=plan.predicted_peak_w,
        speed_up=1.0,
    )
    rows = [
        (
            row.rule,
            *_place(row),
            phrases.seconds(row.predicted_s),
            phrases.times(row.speed_up),
            phrases.joules(row.predicted_j),
            phrases.watts(row.predicted_peak_w),
            phrases.remark(row),
        )
        for row in (own, *plan.baselines)
    ]
    head = ("rule", "batch", "setting", "time", "vs. wattune", "energy", "peak power", "")
    return _table("Other rules under the same cap", origin, head, rows, phrases.OWN_RULE, VERSUS, extra=1)


def algorithm_rows(plan: Plan, origin: str) -> Table:
    """Each training algorithm's best point under the cap and the memory limit, or why it has none."""
    rows = [
        (
            row.algorithm,
            *_place(row),
            phrases.memory(row.memory_bytes),
            phrases.times(row.relative_samples),
            phrases.times(row.times_chosen),
            phrases.seconds(row.predicted_s),
            phrases.joules(row.predicted_j),
            "" if row.feasible else row.why_not or "",
        )
        for row in plan.algorithms
    ]
    head = ("algorithm", "batch", "setting", "memory", "samples", "vs. chosen", "time", "energy", "")
    note = "samples: relative to backprop at its reference batch size"
    if plan.memory_limit_bytes is not None:
        note += f"; the memory limit is {phrases.memory(plan.memory_limit_bytes)}"
    return _table("Training algorithms under the same limits", origin, head, rows, plan.algorithm, note)


def _table(
    title: str,
    origin: str,
    head: tuple[str, ...],
    rows: Sequence[Sequence[str]],
    chosen: str,
    note: str,
    extra: int = 0,
) -> Table:
    numeric = (False, *(True for _ in head[2:]), False)
    marked = frozenset(place for place, row in enumerate(rows) if row[0] == chosen)
    return Table(title, origin, head, numeric, rows, marked, shown=20, note=note, extra=extra)


def _place(row: ComparisonRow | Baseline | AlgorithmChoice) -> tuple[str, str]:
    where = row.point
    return ("-", "-") if where is None else (phrases.batch(where), phrases.setting(where))


def spread(unit: Callable[[float | None], str], mean: float | None, deviation: float | None) -> str:
    """Write a mean, with its standard deviation if there is one: "28.6 ± 2.45 s"."""
    if mean is None or deviation is None:
        return unit(mean)
    (number, _, own), around = unit(mean).partition(" "), unit(deviation)
    return f"{number if around.endswith(f' {own}') else unit(mean)} ± {around}"


def _bars(
    rows: Sequence[ComparisonRow], means: Values, deviations: Values, unit: Callable[[float | None], str]
) -> Bars:
    return Bars(
        means,
        colours=["var(--accent)" if row.rule == phrases.OWN_RULE else "var(--quiet)" for row in rows],
        hovers=[
            f"{row.rule}\n{spread(unit, mean, deviation)}"
            for row, mean, deviation in zip(rows, means, deviations, strict=True)
        ],
        errors=deviations,
    )


def _seeds(comparison: Comparison) -> str:
    return "one seed" if len(comparison.seeds) == 1 else f"{len(comparison.seeds)} seeds"
