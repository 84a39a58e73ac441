"""Records as plain text for a terminal, and the rows of tables that the report shows as well."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from wattune.records import AlgorithmChoice, Baseline, Comparison, ComparisonRow, Plan, TrainingRecord
from wattune.reporting import phrases, plan_text, run_text
from wattune.reporting.run_time import basis, difference, evaluations

_LABELS = {"simulated": "SIMULATED", "replayed": "RECORDED (replayed)", "recorded": "RECORDED", "measured": "MEASURED"}

WIDTH = 80
"""Columns of a terminal that tables fit into."""

SHOWN_EVENTS = 5
"""Maximum number of board events in a summary."""


def summary(plan: Plan, training: TrainingRecord | None = None, comparison: Comparison | None = None) -> str:
    """Summarize the chosen point, predicted and actual figures, the other rules, and the cost of profiling.

    The first line has the origin: simulated, recorded, measured or unknown.
    """
    about = ", ".join(filter(None, (plan.workload, plan.device, plan_text.under_cap_of(plan))))
    parts = [
        f"{about}  [{_label(plan, training)}]",
        f"chosen: {plan_text.chosen(plan)}",
        *filter(None, [plan.algorithm_cost]),
        *plan.notes,
        _figures(plan, training),
        *filter(None, [evaluations(plan)]),
        *filter(
            None,
            [
                plan_text.goal(plan),
                plan_text.trade_off(plan.front, plan.point),
                plan_text.cap_meaning(plan),
                run_text.moving_cap(plan, training),
                run_text.schedule(plan, training),
                plan_text.own_batch_size(plan),
                plan_text.confidence(plan),
            ],
        ),
    ]
    if training:
        parts.append("\n".join(filter(None, (_ending(training), run_text.left_out(training)))))
        parts += filter(None, [difference(plan, training)])
        parts += filter(None, [_board(training)])
    parts += [algorithm_table(plan)] if plan.algorithms else []
    parts += [comparison_table(comparison)] if comparison else [_baselines(plan)] if plan.baselines else []
    if plan.profile_cost:
        parts.append(run_text.profiling_cost(plan.profile_cost, plan, training))
    return "\n\n".join(parts) + "\n"


def comparison_table(comparison: Comparison) -> str:
    """Table of every rule's trained pick: time with its spread over seeds, energy, and the time over wattune's.

    The report has the spread of the energy, the peak power and the excess over the fastest as well.
    """
    head = ("rule", "batch", "setting", "time", "energy", VERSUS)
    rows = [
        (
            row.rule,
            *_place(row),
            spread(phrases.seconds, row.time_s, row.time_std_s, "+-"),
            phrases.joules(row.energy_j),
            phrases.times(row.speed_up),
            phrases.remark(row),
        )
        for row in comparison.rows
    ]
    seeds = f"mean over {len(comparison.seeds)} seeds" if len(comparison.seeds) != 1 else "one seed"
    origin = _LABELS.get(comparison.provenance.kind or "", "UNKNOWN ORIGIN")
    under = phrases.under(comparison.cap_w, comparison.supply_cap_w)
    how = "" if comparison.algorithm == "backprop" else f", with {comparison.algorithm}"
    return f"compared {under}{how}, {seeds}  [{origin}]\n{table(head, rows, WIDTH)}\n{VERSUS_NOTE}"


def algorithm_table(plan: Plan) -> str:
    """Table of each training algorithm's best point under the cap and the memory limit, or why it has none."""
    head = ("algorithms, predicted", "batch", "setting", "memory", "samples", "time", "energy", "vs. chosen")
    limit = "" if plan.memory_limit_bytes is None else f", memory limit {phrases.memory(plan.memory_limit_bytes)}"
    return f"{table(head, algorithms(plan))}\n(samples: relative to backprop at its reference batch size{limit})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """Align columns, the first to the left, the others to the right, in ``width`` columns of a terminal if they fit.

    Cells beyond the head are remarks. A remark that would go beyond the width is below its row.
    """
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines if i < len(line)) for i in range(len(head))]
    out = []
    for line in lines:
        cells = [
            cell.ljust(wide) if i == 0 else cell.rjust(wide)
            for i, (cell, wide) in enumerate(zip(line, widths, strict=False))
        ]
        text = "  ".join(cells).rstrip()
        for remark in filter(None, line[len(head) :]):
            if width is None or len(text) + 2 + len(remark) <= width:
                text += f"  {remark}"
            else:
                text += f"\n{textwrap.fill(remark, width, initial_indent='    ', subsequent_indent='    ')}"
        out.append(text)
    return "\n".join(out)


VERSUS = "vs. wattune"
VERSUS_NOTE = f"({VERSUS}: time divided by that of wattune's pick)"


def _label(plan: Plan, training: TrainingRecord | None) -> str:
    record = training or plan
    return _LABELS.get(record.provenance.kind or "", "UNKNOWN ORIGIN")


def _figures(plan: Plan, training: TrainingRecord | None) -> str:
    head = ["", "predicted"]
    rows = [
        ["time to target", phrases.seconds(plan.run_s)],
        ["energy", phrases.joules(plan.run_j)],
        ["peak power", phrases.watts(plan.predicted_peak_w)],
    ]
    if plan.cap_window_s is not None and plan.cap_w is not None:
        rows.append([phrases.capped_power(plan.cap_window_s), phrases.watts(plan.predicted_window_w)])
    if training:
        head.append(training.provenance.kind or "trained")
        figures = (
            phrases.seconds(training.time_s),
            phrases.joules(training.energy_j),
            phrases.watts(training.power_peak_w),
            phrases.watts(training.power_window_w),
        )
        for row, real in zip(rows, figures, strict=False):  # without a window there is one row less
            row.append(real)
        if plan.cap_w is not None:
            verb = "exceeds" if training.exceeds_cap else "stays under"
            rows[-1].append(f"{verb} the cap of {phrases.cap(plan.cap_w)}{_window(plan)}")
            rows.append(["above the cap", "", phrases.seconds(training.above_cap_s), *_exactly(training)])
    if plan.predicted_above_rest_j is not None and plan.rest_w is not None:
        above = ["energy above rest", phrases.joules(plan.predicted_above_rest_j)]
        if training:
            above.append(phrases.joules(max(0.0, training.energy_j - plan.rest_w * training.time_s)))
        rows.insert(2, above)
    what = basis(plan)
    return table(head, rows) + (f"\n({what})" if what else "")


def _window(plan: Plan) -> str:
    if plan.cap_window_s is not None or not plan.sensor_window_s:
        return ""
    return f", in averages over {phrases.seconds(plan.sensor_window_s)}"


def _exactly(training: TrainingRecord) -> list[str]:
    if training.exact is None:
        return []
    return [f"exact, by the simulation: {phrases.seconds(training.exact.above_cap_s)}"]


def _ending(training: TrainingRecord) -> str:
    target = training.target
    last = training.evaluations[-1].metric if training.evaluations else None
    text = "target reached" if training.reached else "TARGET NOT REACHED"
    if target is not None:
        text += f" ({last:.4g}, target {target:.4g})" if last is not None else f" (target {target:.4g})"
    text += f" after {phrases.count(training.samples)} samples"
    if training.reached or training.ended is None:
        return text
    return f"{text}: {training.ended}" + (f", {training.reason}" if training.reason else "")


def _board(training: TrainingRecord) -> str:
    """Lines on the first few board events, and on the temperature if it had a limit."""
    lines = [f"{phrases.seconds(e.time_s)}: {e.kind}: {e.text}" for e in training.board_events[:SHOWN_EVENTS]]
    if (more := len(training.board_events) - SHOWN_EVENTS) > 0:
        lines.append(f"and {more} more events in the record")
    if training.max_temp_c is not None:
        highest = "-" if training.temperature_max_c is None else f"{training.temperature_max_c:.1f}"
        lines.append(f"highest temperature {highest} °C, limit {training.max_temp_c:g} °C")
    return "\n".join(lines)


def _baselines(plan: Plan) -> str:
    head = ("other rules, predicted", "batch", "setting", "time", "energy", VERSUS)
    rows = [(*row[:5], *row[6:]) for row in predicted(plan)]  # the report has the peak power as well
    return f"{table(head, rows, WIDTH)}\n{VERSUS_NOTE}"


TableRow = tuple[str, ...]


def compared(comparison: Comparison) -> list[TableRow]:
    """Rows of a comparison: rule, batch, setting, time, energy, peak, slowdown over wattune, above fastest, remark."""
    return [
        (
            row.rule,
            *_place(row),
            spread(phrases.seconds, row.time_s, row.time_std_s),
            spread(phrases.joules, row.energy_j, row.energy_std_j),
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
    unit: Callable[[float | None], str], mean: float | None, deviation: float | None, plus_minus: str = " ± "
) -> str:
    """Write a mean, with its standard deviation if there is one: "28.6 ± 2.45 s"."""
    if mean is None or deviation is None:
        return unit(mean)
    (number, _, own), around = unit(mean).partition(" "), unit(deviation)
    return f"{number if around.endswith(f' {own}') else unit(mean)}{plus_minus}{around}"


def _place(row: ComparisonRow | Baseline | AlgorithmChoice) -> tuple[str, str]:
    where = row.point
    return ("-", "-") if where is None else (phrases.batch(where), phrases.setting(where))
