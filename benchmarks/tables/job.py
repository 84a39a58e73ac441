"""The whole job on simulated boards: what it saves, and what profiling and proxy runs cost."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables.results import comparison_table, ms, percent, read


def headline() -> str:
    """Headline: the gain over the default batch size on recorded GPUs, with what it costs and where it fails."""
    data = read("decisions")["gpus"]
    default = data["gain"]["default batch"]
    best = data["best of all over default batch"]
    unchanged = sum(times < 1.005 for times in default["by_group"].values())
    return (
        "On [recorded training runs of real GPUs](docs/results.md#recorded-training-runs-of-real-gpus), training "
        f"reaches its target **{default['equal_weight']:.2f} times as fast** with the batch size that wattune picks as "
        f"with the default of the recipe: the mean over {len(default['by_group'])} pairs of GPU and workload, of which "
        f"{unchanged} gain nothing. The best batch size would give {best['equal_weight']:.2f}. The runs to pick from "
        f"take as long as {data['paid back']['cost_in_runs']:.0f} training runs, and {percent(default['loses'])} of "
        f"the {data['cases']:,} cases get slower.\n"
    )


def comparison() -> str:
    """Every rule's pick on both boards."""
    lines = []
    for board in read("example")["boards"]:
        lines += [
            f"`{board['device']}`, cap {board['cap_w']:g} W; time and energy simulated, samples from real training "
            "runs:",
            "",
            *comparison_table(board["rows"]),
        ]
        lines.append("")
    return "\n".join(lines)


def sweep() -> str:
    """The picks over 20 caps."""
    lines = []
    for board in read("example")["boards"]:
        picks = [row for row in board["sweep"] if row["feasible"]]
        largest = [row["over_largest_batch"] for row in picks if row["over_largest_batch"]]
        best = [row["over_best_batch"] for row in picks if row["over_best_batch"]]
        lines.append(
            f"- `{board['device']}`: {len(picks)} of {board['caps']} caps are feasible. wattune picks "
            f"{board['different_points']} different points and is faster than both fixed-clock rules under "
            f"{board['beats_both']} caps. (Under {len(picks) - len(largest)} there is nothing to compare with: no "
            "clock is known at which the reference workloads stay under the cap.) It is "
            f"{span(largest)} times as fast as the largest batch at the fixed clock, {span(best)} times as fast as the "
            "best batch at the fixed clock, and at most "
            f"{max(row['above_fastest'] for row in picks):.0%} slower than the fastest point."
        )
    return "\n".join(lines) + "\n"


def profiling_cost() -> str:
    """Cost of profiling beside the example's short training run."""
    lines = []
    for board in read("example")["boards"]:
        profile, training = board["profile"], board["training"]
        pays = profile["pays_after_trainings"]
        lines.append(
            f"- `{board['device']}`: profiling {profile['cells']} points takes {profile['time_s']:.0f} s of board "
            f"time, {profile['share_of_this_training']:.0f} times as long as this training run "
            f"({training['time_s']:.0f} s). "
            + (f"It pays for itself after {pays:.0f} runs like this." if pays else "It never pays for runs like this.")
        )
    return "\n".join(lines) + "\n"


def speed() -> str:
    """Speed of the tool itself."""
    startup, planning, profiling, metering = (read(n) for n in ("startup", "planning", "profiling", "metering"))
    machine, (low, high) = startup["machine"], metering["quartiles"]
    return (
        f"Measured on {machine['cores']} cores of an {machine['cpu']}, Python {machine['python']}: median (fastest to "
        "slowest).\n\n"
        "| | aim | measured |\n|---|---|---|\n"
        f"| planning {planning['cells']} points | 1 ms | {ms(planning)} |\n"
        f"| simulated profile of ResNet-8, {profiling['cells']} points, without imports | 2 s "
        f"| {seconds(profiling)} |\n"
        f"| `wattune --help` | 0.5 s | {seconds(startup)} |\n"
        f"| CPU time of the meter's thread, sampling at 10 Hz beside a real training loop | under 1% "
        f"| {metering['sampling_thread']:.2%} |\n"
        f"| the same on an Orin Nano, whose registers take {1e3 * metering['board']['read_s']:g} ms each to read "
        f"| | {metering['board']['sampling_thread']:.1%} |\n"
        f"| slowdown of that loop by the meter, {metering['pairs']} pairs with and without | under 1% "
        f"| {metering['overhead']:+.1%} (quartiles {low:+.1%} to {high:+.1%}: the machine's noise) |\n"
    )


def span(values: list[float]) -> str:
    """Smallest to largest."""
    return f"{min(values):.2f} to {max(values):.2f}" if values else "unknown"


def seconds(figures: dict[str, float]) -> str:
    """A median with its range, in seconds."""
    return f"{figures['median_s']:.2f} s ({figures['min_s']:.2f} to {figures['max_s']:.2f})"


PARTS: dict[str, Callable[[], str]] = {
    "comparison": comparison,
    "headline": headline,
    "profiling_cost": profiling_cost,
    "speed": speed,
    "sweep": sweep,
}
