"""Records as short plain text, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from wattune.records import Comparison, Plan, TrainingRecord
from wattune.reporting import words
from wattune.reporting.rows import algorithms, compared, predicted

_SHOUTED = {"simulated": "SIMULATED", "replayed": "RECORDED (replayed)", "recorded": "RECORDED", "measured": "MEASURED"}

SHOWN_EVENTS = 5
"""Events of the board that a summary lists."""


def summary(plan: Plan, training: TrainingRecord | None = None, comparison: Comparison | None = None) -> str:
    """The chosen point, what was predicted and what came out, what the other rules do, and what profiling cost.

    The first line says whether this was simulated, recorded or measured, or that it is not known.
    """
    about = ", ".join(filter(None, (plan.workload, plan.device, words.under(plan.cap_w, plan.supply_cap_w))))
    parts = [
        f"{about}  [{_shouted(plan, training)}]",
        f"chosen: {words.chosen(plan)}",
        *filter(None, [plan.algorithm_cost]),
        *plan.notes,
        _figures(plan, training),
        *filter(None, [words.side(plan), words.sure(plan), words.robust(plan)]),
    ]
    if training:
        parts.append("\n".join(filter(None, (_ending(training), words.left_out(training)))))
        parts += filter(None, [_board(training)])
    parts += [algorithm_table(plan)] if plan.algorithms else []
    parts += [comparison_table(comparison)] if comparison else [_baselines(plan)] if plan.baselines else []
    if plan.profile_cost:
        parts.append(words.profiling_cost(plan.profile_cost, plan, training))
    return "\n\n".join(parts) + "\n"


def comparison_table(comparison: Comparison) -> str:
    """Every rule's pick, trained: time and energy with their spread over seeds, and as a multiple of wattune's."""
    head = ("rule", "batch", "setting", "time", "energy", "peak", "slower by", "above fastest")
    rows = compared(comparison, plus_minus="+-")
    seeds = f"mean over {len(comparison.seeds)} seeds" if len(comparison.seeds) != 1 else "one seed"
    origin = _SHOUTED.get(comparison.provenance.kind or "", "UNKNOWN ORIGIN")
    under = words.under(comparison.cap_w, comparison.supply_cap_w)
    return f"compared {under}, {seeds}  [{origin}]\n{table(head, rows)}"


def algorithm_table(plan: Plan) -> str:
    """The best of each training algorithm under the cap and the memory limit, or why it has none."""
    head = ("algorithms, predicted", "batch", "setting", "memory", "samples", "time", "energy", "slower by")
    limit = "" if plan.memory_limit_bytes is None else f", memory limit {words.memory(plan.memory_limit_bytes)}"
    return f"{table(head, algorithms(plan))}\n(samples: over those of backprop's reference batch size{limit})"


def cap_table(plan: Plan) -> str:
    """The pick over the range of caps, and how much slower the two baselines are, also where there is no gain."""
    head = ("cap", "batch", "setting", "largest batch, fixed clock", "best batch, fixed clock")
    rows: list[Sequence[str]] = []
    for gain in plan.gain_over_caps:
        where = words.place(gain)
        if where is None or not gain.feasible:
            rows.append((words.watts(gain.cap_w), "-", "-", "-", "-", words.no_pick(gain)))
            continue
        over = (words.times(gain.over_largest_batch), words.times(gain.over_best_batch))
        rows.append((words.watts(gain.cap_w), words.batch(where), words.setting(where), *over, ""))
    return table(head, rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, the first to the left, the others to the right. Cells beyond the head are remarks."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines if i < len(line)) for i in range(len(head))]
    out = []
    for line in lines:
        cells = [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=False))
        ]
        out.append("  ".join([*cells, *line[len(head) :]]).rstrip())
    return "\n".join(out)


def _shouted(plan: Plan, training: TrainingRecord | None) -> str:
    record = training or plan
    return _SHOUTED.get(record.provenance.kind or "", "UNKNOWN ORIGIN")


def _figures(plan: Plan, training: TrainingRecord | None) -> str:
    head = ["", "predicted"]
    rows = [
        ["time to target", words.seconds(plan.predicted_s)],
        ["energy", words.joules(plan.predicted_j)],
        ["peak power", words.watts(plan.predicted_peak_w)],
    ]
    if training:
        head.append(training.provenance.kind or "trained")
        for row, real in zip(
            rows,
            (words.seconds(training.time_s), words.joules(training.energy_j), words.watts(training.power_peak_w)),
            strict=True,
        ):
            row.append(real)
        if plan.predicted_s is not None:
            rows[0].append("predicted: steps only, with the proxy's samples")
        if plan.cap_w is not None:
            kept = "kept" if training.power_peak_w <= plan.cap_w else "exceeded"
            rows[-1].append(f"cap {words.cap(plan.cap_w)} {kept}{_window(plan)}")
            rows.append(["above the cap", "", words.seconds(training.above_cap_s), *_exactly(training)])
    return table(head, rows)


def _window(plan: Plan) -> str:
    return f", by readings over {words.seconds(plan.sensor_window_s)}" if plan.sensor_window_s else ""


def _exactly(training: TrainingRecord) -> list[str]:
    if training.exact is None:
        return []
    return [f"exactly {words.seconds(training.exact.above_cap_s)}, by the simulator"]


def _ending(training: TrainingRecord) -> str:
    target = training.target
    last = training.evaluations[-1].metric if training.evaluations else None
    text = "target reached" if training.reached else "TARGET NOT REACHED"
    if target is not None:
        text += f" ({last:.4g}, target {target:.4g})" if last is not None else f" (target {target:.4g})"
    text += f" after {words.count(training.samples)} samples"
    if training.reached or training.ended is None:
        return text
    return f"{text}: {training.ended}" + (f", {training.reason}" if training.reason else "")


def _board(training: TrainingRecord) -> str:
    """What the plan became, what happened to the board, the first few, and how hot it became where that had a limit."""
    lines = [
        f"planned anew after {words.seconds(change.time_s)}, for {words.setting(change.point)}: {change.why}"
        for change in training.replanned
    ]
    lines += filter(None, [words.off_track(training)])
    lines += [f"{words.seconds(e.time_s)}: {e.kind}: {e.text}" for e in training.board_events[:SHOWN_EVENTS]]
    if (more := len(training.board_events) - SHOWN_EVENTS) > 0:
        lines.append(f"and {more} more in the record")
    if training.max_temp_c is not None:
        seen = "-" if training.temperature_max_c is None else f"{training.temperature_max_c:.1f}"
        lines.append(f"highest temperature {seen} °C, limit {training.max_temp_c:g} °C")
    return "\n".join(lines)


def _baselines(plan: Plan) -> str:
    head = ("other rules, predicted", "batch", "setting", "time", "energy", "peak", "slower by")
    return table(head, predicted(plan))
