"""The whole job on simulated boards: what it saves, and what profiling and proxy runs cost."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables.results import comparison_table, ms, percent, read


def headline() -> str:
    """Headline: clocks on a recorded Jetson, batch size in MLPerf's runs and on recorded GPUs, each with its cost."""
    clocks, decisions, script = read("jetsons"), read("decisions"), read("script")
    ours, mlperf, gpus = clocks["strategies"]["wattune"], decisions["mlperf"], decisions["gpus"]
    default = gpus["gain"]["default batch"]
    unchanged = sum(times < 1.005 for times in default["by_group"].values())
    return (
        "- **Clocks.** On a [recorded Jetson TX2](docs/results.md#three-clocks-of-a-recorded-jetson-tx2), GPU, memory "
        f"and CPU clock chosen together train **{ours['over_gpu_clock_alone']:.2f} times as fast** under the same cap "
        "as the best GPU clock alone, where the latter stays below it. The search costs "
        f"{percent(script['loss_binding']['600'])} of ten minutes.\n"
        "- **Batch size.** In [MLPerf's own reference runs](docs/results.md#mlperf), the largest batch takes "
        f"**{percent(mlperf['largest']['mean'])} more time** to the target than the best one. Two runs find one within "
        f"{percent(mlperf['ours, two runs']['mean'])}, {mlperf['ours']['runs_mean']:.0f} runs within "
        f"{percent(mlperf['ours']['mean'])}.\n"
        "- On [recorded training runs of real GPUs](docs/results.md#recorded-training-runs-of-real-gpus), wattune's "
        f"batch size is {default['equal_weight']:.2f} times as fast as the recipe's: the mean over "
        f"{len(default['by_group'])} pairs of GPU and workload, of which {unchanged} gain nothing. The runs to choose "
        f"from take as long as {gpus['paid back']['cost_in_runs']:.0f} training runs.\n"
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
    startup, planning = read("startup"), read("planning")
    machine = startup["machine"]
    return (
        f"Measured on {machine['cores']} cores of an {machine['cpu']}, Python {machine['python']}: median (fastest to "
        "slowest).\n\n"
        "| | aim | measured |\n|---|---|---|\n"
        f"| planning {planning['cells']} points | 1 ms | {ms(planning)} |\n"
        f"| `wattune --help` | 0.5 s | {seconds(startup)} |\n"
    )


def seconds(figures: dict[str, float]) -> str:
    """A median with its range, in seconds."""
    return f"{figures['median_s']:.2f} s ({figures['min_s']:.2f} to {figures['max_s']:.2f})"


PARTS: dict[str, Callable[[], str]] = {
    "comparison": comparison,
    "headline": headline,
    "profiling_cost": profiling_cost,
    "speed": speed,
}
