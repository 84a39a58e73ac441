"""Results as text tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def efficiency(figures: dict[str, Any]) -> str:
    """Table of the methods that choose the batch size."""
    head = ("way", "regret on target", "p90", "< 2 %", "runs", "samples saved", "server saved", "less 6 x 5 (95 %)")
    lines = [
        (
            name,
            mean(one["all"]),
            percent(one["all"]["p90"]),
            percent(one["all"]["under_2_percent"], 0),
            f"{one['runs_mean']:.1f} ({one['runs_max']})",
            percent(one["samples_saved"], 0),
            percent(one["server_saved"], 0),
            apart(one["against paper 6 x 5"]),
        )
        for name, one in figures.items()
    ]
    own = figures["ours"]
    return "\n".join(
        [
            table(head, lines),
            "",
            by_family(figures),
            "",
            f"floor (exact knowledge, judged by the target's few seeds): {mean(own['floor'])}; "
            f"ours: coverage of the 90 % band {percent(own['coverage'])} +- {percent(own['coverage_se'])}, "
            f"{percent(own['coverage_but_error'])} if the truth's own error is allowed for, "
            f"{own['coverage_by_family']}; stated regret {percent(own['stated'], 2)}, realised over stated "
            f"{own['realised_over_stated']} on the target, {own['realised_over_stated_on_same']} on the same workload; "
            f"a step takes {own['step_ms']['mean']} ms (95 %: {own['step_ms']['p95']}); stopped: {own['stopped']}",
        ]
    )


def profiling(figures: dict[str, Any]) -> str:
    """Table of the methods that probe a board."""
    return _probing(figures, "against full grid")


def pipeline(figures: dict[str, Any]) -> str:
    """Table of the methods for the whole job."""
    return _probing(figures, "against full grid + 6 x 5")


def _probing(figures: dict[str, Any], against: str) -> str:
    head = (
        "way", "regret", "at the cap", "p90", "< 2 %", "probes", "probing s", "boards over", "by 1 %", "worst",
        "picks over", "worst", "less grid (95 %)",
    )  # fmt: skip
    lines = [
        (
            name,
            mean(one["all"]),
            mean(one["against the optimum at the cap"]),
            percent(one["all"]["p90"]),
            percent(one["all"]["under_2_percent"], 0),
            f"{one['probes_mean']:.1f} ({one['probes_max']})",
            f"{one['probing_s']:.0f}",
            percent(one["boards_with_probe_over"]),
            percent(one["boards_with_probe_surely_over"]),
            percent(one["worst_overshoot"]),
            percent(one["picks_over"]),
            percent(one["worst_pick_over"]),
            apart(one[against]),
        )
        for name, one in figures.items()
    ]
    return "\n".join([table(head, lines), "", by_family(figures)])


def by_family(figures: dict[str, Any]) -> str:
    """Regret of every method by family."""
    families = list(figures["ours"]["by"])
    lines = [
        (name, *(mean(one["by"][f]) if f in one["by"] else "-" for f in families)) for name, one in figures.items()
    ]
    return table(("regret by family", *families), lines)


def real_gpus(figures: dict[str, Any]) -> str:
    """Tables for Zeus' traces, as recorded and without the marked runs."""
    parts = {"as recorded": figures, "clean": figures["clean"], "clean, resolved": figures["clean, resolved"]}
    return "\n\n".join(f"{name}: {part['cases']} cases\n\n{_gpus(part)}" for name, part in parts.items() if part)


def _gpus(figures: dict[str, Any]) -> str:
    lines = [
        (
            name,
            mean(one),
            percent(one["median"]),
            percent(one["p90"]),
            percent(one["under_2_percent"], 0),
            f"{one['runs_mean']:.1f} ({one['runs_max']})",
            str(one["failed"]),
            apart(one["against raw means, all runs"]),
        )
        for name, one in figures["regret"].items()
    ]
    groups = list(figures["regret"]["ours"]["by_group"])
    by = [(name, *(percent(one["by_group"][g]) for g in groups)) for name, one in figures["regret"].items()]
    gains = [
        (
            name,
            *(f"{one[what]:.3f}" for what in ("equal_weight", "geometric_mean", "best", "median", "worst")),
            percent(one["none"], 0),
            percent(one["loses"], 1),
            percent(one["loses_surely"], 1),
            str(one["never_reaches"]),
        )
        for name, one in [
            *figures["gain"].items(),
            *((name, one) for name, one in figures.items() if name.endswith("over default batch")),
        ]
    ]
    paid = figures["paid back"]
    own = figures["ours"]
    return "\n".join(
        [
            table(
                ("way", "regret", "median", "p90", "< 2 %", "runs", "missed the target", "less all raw means (95 %)"),
                lines,
            ),
            "",
            table(("regret by GPU and data", *groups), by),
            "",
            table(
                (
                    "times ours, at least",
                    "equal weight",
                    "by cases",
                    "best",
                    "median",
                    "worst",
                    "none",
                    "loses",
                    "surely",
                    "never there",
                ),
                gains,
            ),
            "",
            f"ours: coverage {percent(own['coverage'])} ({percent(own['coverage_but_error'])} with the judge's error), "
            f"stated {percent(own['stated'])}, realised over stated {own['realised_over_stated']}",
            f"its runs take as long as {paid['cost_in_runs']:.1f} training runs; paid back against the default after "
            f"{paid['median_if_ever']} (median), never in {percent(paid['never'])} of the cases",
        ]
    )


def power_limits(figures: dict[str, Any]) -> str:
    """Time and energy with a limit equal to the cap, relative to the planned limit."""
    lines = [
        (job, str(one["gpus"]), f"{one['time']:.3f}", f"{one['energy']:.3f}", f"{one['nominal_over']} of {one['caps']}")
        for job, one in figures.items()
    ]
    return table(("limit equal to the cap", "GPUs", "times as long", "times the energy", "over the cap"), lines)


def goals(figures: dict[str, Any]) -> str:
    """Tables for the goals other than the time: what they save, a bounded slowdown, and guided profiling."""
    parts = {"as recorded": figures, "clean": figures["clean"]}
    probing = [
        (
            name,
            *(percent(one[f"energy_regret{what}"], 2) for what in ("", "_p90", "_worst")),
            percent(one["time"]),
            f"{one['probes']:.1f} ({one['probes_most']})" if "probes" in one else "-",
            f"{one['probes_over']} ({one['probes_over_by_1_percent']})" if "probes" in one else "-",
            percent(one.get("worst_over")),
            str(one.get("picks_over", "-")),
        )
        for name, one in figures["tx2"].items()
    ]
    head = ("TX2", "more energy", "p90", "worst", "slower", "probes", "over (by 1 %)", "worst", "picks over")
    return "\n\n".join(
        [*(f"{name}: {part['cases']} cases\n\n{_saved(part)}" for name, part in parts.items()), table(head, probing)]
    )


def _saved(figures: dict[str, Any]) -> str:
    saved = [
        (
            f"{goal}: {way}",
            *(f"{one[what]:.3f}" for what in ("geometric_mean", "equal_weight", "worst", "energy", "time")),
            percent(one["loses"]),
            percent(one["loses_surely"]),
            str(one["failed"]),
        )
        for goal, by_way in figures["over default"].items()
        for way, one in by_way.items()
    ]
    bounded = {f"{way}, {beside}": one for way, both in figures["slowdown"].items() for beside, one in both.items()}
    groups = list(next(iter(bounded.values()))["by_group"])
    slowdown = [
        (
            name,
            *(f"{percent(at['energy'])} / {percent(at['time'])}" for at in (one, *one["by_group"].values())),
            percent(one["slower_than_allowed"], 0),
        )
        for name, one in bounded.items()
    ]
    head = ("over the default, at least", "by cases", "equal weight", "worst", "energy", "time", "loses", "surely", "-")
    return "\n\n".join(
        [
            table(head, saved),
            table(("energy / time, 5 % slower at most", "mean", *groups, "slower"), slowdown),
        ]
    )


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Text table, the first column left-aligned, the others right-aligned."""
    widths = [max(len(line[place]) for line in (head, *lines)) for place in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in (head, *lines)
    )


def percent(share: float | None, digits: int = 1) -> str:
    """A share in percent."""
    return "-" if share is None else f"{100 * share:.{digits}f}"


def mean(figures: dict[str, Any]) -> str:
    """A mean with its standard error, in percent."""
    return f"{percent(figures['mean'], 2)} +- {percent(figures['se'], 2)}" if figures["cases"] else "-"


def apart(figures: dict[str, Any]) -> str:
    """A paired difference with both ends of its one-sided intervals, in percent."""
    word = "better" if figures["better"] else "not worse" if figures["not_worse"] else "worse"
    return (
        f"{percent(figures['difference'], 2)} ({percent(figures['low'], 2)} to {percent(figures['high'], 2)}): {word}"
    )


def targets(figures: dict[str, Any]) -> str:
    """Table of the targets and the measured figures."""
    lines = [
        (
            one["figure"],
            *(f"{one[what] * (100 if one['share'] else 1):.4g}" for what in ("must", "aim", "measured")),
            one["reached"],
        )
        for one in figures["figures"]
    ]
    tests = [f"ours in {name}: {apart(one)}" for name, one in figures["paired"].items()]
    return "\n".join([table(("figure (shares in percent)", "must", "aim", "measured", "reached"), lines), "", *tests])


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "efficiency": efficiency,
    "goals": goals,
    "gpus": real_gpus,
    "limits": power_limits,
    "pipeline": pipeline,
    "profiling": profiling,
}
