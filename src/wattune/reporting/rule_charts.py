"""Charts and tables of every rule's pick, at one cap and over a range of caps, including those without a gain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wattune.records import Comparison, ComparisonRow, Plan
from wattune.reporting import phrases
from wattune.reporting.charts import Axis, Bars, Chart, Panel, Values
from wattune.reporting.page import Figure, Table
from wattune.reporting.text import algorithms, compared, predicted, spread


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
        height=80 + 44 * len(rows),
        wide=True,
    )


def comparison_rows(comparison: Comparison) -> Table:
    """The comparison as a table, including rules without a result."""
    rows = compared(comparison)
    head = ("rule", "batch size", "setting", "time", "energy", "peak power", "time vs. wattune", "above fastest", "")
    numeric = (False, True, True, True, True, True, True, True, False)
    marked = frozenset(i for i, row in enumerate(comparison.rows) if row.rule == phrases.OWN_RULE)
    note = "Time vs. wattune: the time of the rule divided by that of wattune's pick, so above 1 wattune is faster."
    origin = phrases.origin(comparison=comparison.provenance.kind)
    return Table("All rules", origin, head, numeric, rows, marked, shown=20, note=note)


def baseline_rows(plan: Plan, origin: str) -> Table:
    """The picks of the other rules, with the plan's predictions."""
    plan_row = (
        phrases.OWN_RULE,
        phrases.batch(plan.point),
        phrases.setting(plan.point),
        phrases.seconds(plan.predicted_s),
        phrases.joules(plan.predicted_j),
        phrases.watts(plan.predicted_peak_w),
        phrases.times(1.0),
        "chosen",
    )
    rows = [
        plan_row,
        *predicted(plan),
    ]
    head = ("rule", "batch size", "setting", "time", "energy", "peak power", "time vs. wattune", "")
    numeric = (False, True, True, True, True, True, True, False)
    return Table("Other rules under the same cap", origin, head, numeric, rows, frozenset({0}), shown=20)


def algorithm_rows(plan: Plan, origin: str) -> Table:
    """Each training algorithm's best point under the cap and the memory limit, or why it has none."""
    head = ("algorithm", "batch size", "setting", "memory", "samples", "time", "energy", "time vs. chosen", "")
    numeric = (False, True, True, True, True, True, True, True, False)
    rows = algorithms(plan)
    marked = frozenset(i for i, row in enumerate(plan.algorithms) if row.algorithm == plan.algorithm)
    limit = (
        "" if plan.memory_limit_bytes is None else f" The memory limit is {phrases.memory(plan.memory_limit_bytes)}."
    )
    note = f"Samples are relative to backprop at its reference batch size.{limit}"
    return Table("Training algorithms under the same limits", origin, head, numeric, rows, marked, shown=20, note=note)


def candidate_rows(plan: Plan, origin: str) -> Table:
    """Every candidate, the fastest first, and why it was not chosen."""
    candidates = sorted(plan.candidates, key=lambda c: (not c.feasible, c.relative_time or float("inf"), c.batch_size))
    marked = frozenset(i for i, candidate in enumerate(candidates) if candidate.point == plan.point)
    rows = [
        (
            phrases.batch(candidate.point),
            phrases.setting(candidate.point),
            phrases.seconds(candidate.predicted_s),
            phrases.joules(candidate.predicted_j),
            phrases.watts(candidate.predicted_peak_w),
            "yes" if candidate.feasible else "no",
            candidate.why_not or "chosen",
        )
        for candidate in candidates
    ]
    head = ("batch size", "setting", "time", "energy", "peak power", "feasible", "remark")
    numeric = (True, True, True, True, True, False, False)
    return Table("All candidates", origin, head, numeric, rows, marked, shown=10)


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
