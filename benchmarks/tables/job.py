"""The whole job on simulated boards: what it saves, and what profiling and proxy runs cost."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from benchmarks.tables.results import ms, percent, read


def headline() -> str:
    """Headline: clocks on a recorded Jetson, batch size in MLPerf's runs, and the paper's tables replayed."""
    from benchmarks.paper.sections import behind

    clocks, decisions, script, replay = read("jetsons"), read("decisions"), read("script"), read("paper_replay")
    ours, mlperf, summary = clocks["strategies"]["wattune"], decisions["mlperf"], replay["summary"]
    return (
        "- **Clocks.** On a [recorded Jetson TX2](docs/results.md#three-clocks-of-a-recorded-jetson-tx2), GPU, memory "
        f"and CPU clock chosen together train **{ours['over_gpu_clock_alone']:.2f} times as fast** under the same cap "
        "as the best GPU clock alone, where the latter stays below it. The search costs "
        f"{percent(script['loss_binding']['600'])} of ten minutes.\n"
        "- **Batch size.** In [MLPerf's own reference runs](docs/results.md#mlperf), the largest batch takes "
        f"**{percent(mlperf['largest']['mean'])} more time** to the target than the best one (arithmetic mean). Two "
        f"runs find one within {percent(mlperf['ours, two runs']['mean'])}, {mlperf['ours']['runs_mean']:.0f} runs "
        f"within {percent(mlperf['ours']['mean'])}.\n"
        "- **Both.** The [paper's tables](benchmarks/paper/README.md), replayed on simulated boards: "
        f"{summary['mean_speed_up']['replayed']:.2f} times as fast as the conservative baseline in the arithmetic mean "
        f"({summary['mean_speed_up']['without']:.2f} without two cells whose clock is one step too high). "
        f"{behind(summary)}\n"
    )


def comparison() -> str:
    """Every rule's pick on both boards, and its time relative to wattune's."""
    boards = read("example")["boards"]
    lines = [
        "Time and energy simulated, samples from real training runs; in brackets, time relative to wattune:",
        "",
        "| | " + " | ".join(f"`{board['device']}`, cap {board['cap_w']:g} W" for board in boards) + " |",
        "|---|---|---|",
    ]
    for rows in zip(*(board["rows"] for board in boards), strict=True):
        cells = (
            row["why_not"]
            if row["time_s"] is None
            else f"{row['batch_size']} at {row['clock_mhz']:g} MHz: {row['time_s']:.1f} ± {row['time_std_s']:.1f} s, "
            f"{row['energy_j']:.0f} J ({row['speed_up']:.2f})"
            for row in rows
        )
        lines.append(f"| {rows[0]['rule']} | {' | '.join(cells)} |")
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
    startup, planning, search = read("startup"), read("planning"), read("search_speed")
    machine, over = startup["machine"], startup["over_imports"]
    ratios = [f"{median(one['over_before']):.2f}" for one in search["settings"].values()]
    return (
        f"Measured on {machine['cores']} cores of an {machine['cpu']}, Python {machine['python']}: median (fastest to "
        "slowest).\n\n"
        "| | aim | measured |\n|---|---|---|\n"
        f"| planning {planning['cells']} points | 1 ms | {ms(planning)} |\n"
        f"| CPU time of a search's decision among {', '.join(search['settings'])} settings, over that of "
        f"{search['before'][:7]} | 0.25 | {', '.join(ratios)} |\n"
        "| CPU time of `wattune --help` over importing typer, rich and pydantic | 1.3 | "
        f"{over['median']:.2f} ({over['min']:.2f} to {over['max']:.2f}) |\n"
    )


PARTS: dict[str, Callable[[], str]] = {
    "comparison": comparison,
    "headline": headline,
    "profiling_cost": profiling_cost,
    "speed": speed,
}
