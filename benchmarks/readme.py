"""Fill the figures of the README and the docs from results/, each between `<!-- NAME -->` and `<!-- /NAME -->`."""

from __future__ import annotations

import importlib
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.timing import RESULTS

ROOT = Path(__file__).parent.parent
PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "algorithms.md",
    ROOT / "docs" / "beside-inference.md",
    ROOT / "docs" / "boards.md",
    ROOT / "docs" / "carbon.md",
    ROOT / "docs" / "fleet.md",
    ROOT / "docs" / "calibration.md",
    ROOT / "docs" / "contributed-boards.md",
    ROOT / "docs" / "moving-caps.md",
    ROOT / "docs" / "own-loop.md",
    ROOT / "docs" / "results.md",
    ROOT / "docs" / "server.md",
    ROOT / "docs" / "several-devices.md",
    ROOT / "docs" / "sun-and-battery.md",
    ROOT / "benchmarks" / "decisions" / "README.md",
    ROOT / "benchmarks" / "asyncfgd" / "README.md",
    ROOT / "benchmarks" / "paper" / "README.md",
    ROOT / "benchmarks" / "server" / "README.md",
)
MARK = re.compile(r"(<!-- (?P<name>\w+) -->\n).*?(<!-- /(?P=name) -->)", re.DOTALL)


def read(name: str) -> dict[str, Any]:
    """The results of one benchmark."""
    data: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return data


def filled(text: str) -> str:
    """``text`` with every marked part filled from the results."""
    return MARK.sub(lambda match: match[1] + PARTS[match["name"]]() + match[3], text)


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
            *rows(board["rows"]),
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


def real_images() -> str:
    """The comparison on real photographs."""
    data = read("real_images")
    relative = ", ".join(f"{value:.2f} at {size}" for size, value in data["relative_samples"].items() if value)
    training = data["training"]
    lines = [
        f"Pre-trained on 100 classes of Tiny ImageNet; {data['images']:,} images of CIFAR-10, classes 0-4 as the proxy "
        f"and 5-9 as the target; {data['seeds']} seeds. Relative samples to target by batch size, from the proxy: "
        f"{relative}. Profiling took {data['profiling_share']:.1f} times as long as the training run of "
        f"{training['time_s']:.0f} s. Cap {data['cap_w']:g} W on `{data['device']}`:",
        "",
        *rows(data["rows"]),
    ]
    return "\n".join(lines) + "\n"


def boards() -> str:
    """Overhead and response times on a board."""
    data = read("boards")
    machine, guard, memory, pinning = data["machine"], data["guard"], data["memory"], data["pinning"]
    files = [board for board in data["boards"] if not board["by_program"]]
    program = next(board for board in data["boards"] if board["by_program"])
    slowest = max(files, key=lambda board: board["device"]["median_s"])
    return (
        f"On {machine['cores']} cores of an {machine['cpu']}, Python {machine['python']}, with files in place of a "
        "board's: median (worst). The time that the kernel's driver needs to query the chip is not included.\n\n"
        "| | aim | measured |\n|---|---|---|\n"
        f"| one reading, slowest of {len(files)} boards ({slowest['board']}) | 0.2 ms "
        f"| {worst_ms(slowest['device'])} |\n"
        f"| one reading, worst of {data['readings']} on each of these boards | "
        f"| {max(board['device']['max_s'] for board in files) * 1e3:.2f} ms |\n"
        f"| extra time, once a second, to check temperatures and counters, slowest board | "
        f"| {worst_ms(max((board['conditions'] for board in files), key=lambda costs: costs['median_s']))} |\n"
        f"| one reading by a program (Raspberry Pi 5, `vcgencmd` as a script) | | {worst_ms(program['device'])} |\n"
        f"| one reading through an agent, round trip | | {worst_ms(data['agent']['read'])} |\n"
        f"| taking control: lock, snapshot on disk, limits, and a clock that settles after 50 ms | "
        f"| {worst_ms(pinning['first'])} |\n"
        f"| restoring the board | | {worst_ms(pinning['restore'])} |\n"
        f"| `wattune guard`: from power above the cap to the lower clock, {guard['from_power']['repeats']} rises, "
        f"a reading every {guard['sampling_s']:g} s | | {worst_ms(guard['from_power'], 0)} |\n"
        f"| the same, from the moment the program starts working, on a board that reports its load every 100 ms | "
        f"| {worst_ms(guard['from_program'], 0)} |\n"
        f"| memory growth from minute 10 to minute 60 of a training run of one virtual hour, {memory['readings']:,} "
        f"readings | none | {memory['traced_growth_bytes'] / 1024:+.0f} KiB of Python objects, "
        f"{memory['resident_growth_bytes'] / 1024:+.0f} KiB resident |\n"
    )


def agent_cost() -> str:
    """The agent's own cost with files that take as long to read as a real board's."""
    data = read("agent_cost")
    lines = [
        f"Ten readings a second, with {data['read_s'] * 1e3:g} ms for each file: what one register of an INA3221 takes "
        "on an AGX Orin, and more than a temperature does.",
        "",
        "| board | files read per second | share of one core | longest reading |",
        "|---|---|---|---|",
    ]
    for board in data["boards"]:
        lines.append(
            f"| {board['board']} | {board['reads_per_s']:.0f} | {board['share']:.1%} "
            f"| {board['longest_s'] * 1e3:.0f} ms |"
        )
    return "\n".join(lines) + "\n"


def rows(comparison_rows: list[dict[str, Any]]) -> list[str]:
    """Rows of a comparison as a table."""
    lines = [
        "| | batch size | clock | time to target | energy | time relative to wattune |",
        "|---|---|---|---|---|---|",
    ]
    for row in comparison_rows:
        point = f"| {row['rule']} | {row['batch_size'] or '–'} | "
        if row["time_s"] is None:
            lines.append(f"{point}– | {row['why_not']} | | |")
            continue
        lines.append(
            f"{point}{row['clock_mhz']:g} MHz | {row['time_s']:.1f} ± {row['time_std_s']:.1f} s "
            f"| {row['energy_j']:.0f} ± {row['energy_std_j']:.0f} J | {row['speed_up']:.2f} |"
        )
    return lines


def span(values: list[float]) -> str:
    """Smallest to largest."""
    return f"{min(values):.2f} to {max(values):.2f}" if values else "unknown"


def ms(figures: dict[str, float]) -> str:
    """A median with its range, in milliseconds."""
    return f"{figures['median_s'] * 1e3:.2f} ms ({figures['min_s'] * 1e3:.2f} to {figures['max_s'] * 1e3:.2f})"


def worst_ms(figures: dict[str, float], digits: int = 2) -> str:
    """A median with the worst, in milliseconds."""
    return f"{figures['median_s'] * 1e3:.{digits}f} ms ({figures['max_s'] * 1e3:.{digits}f})"


def seconds(figures: dict[str, float]) -> str:
    """A median with its range, in seconds."""
    return f"{figures['median_s']:.2f} s ({figures['min_s']:.2f} to {figures['max_s']:.2f})"


KNOWN = {
    "recipe": "recipe kept",
    "curve": "sample estimates within 3%",
    "noise scale": "gradient noise scale",
    "prior": "past workloads only",
}


def percent(share: float) -> str:
    """A share of one, with one decimal."""
    return f"{100 * share:.1f}%"


def session() -> str:
    """Regret of a session, by what it knows of the samples to target, beside two other strategies."""
    data = read("session")
    lines = [
        f"{data['boards']} random simulated boards, {data['workloads']} workloads, {len(data['caps'])} caps each. "
        "Every training run would take an hour at its best point. Regret is how much longer the current point takes "
        "than the fastest point of which no single reading is above the cap, with all the noise of the sensor. The cap "
        "is on the mean over a second, so a point may be faster than that one, by "
        f"{percent(data['regret']['recipe']['guided']['noise_price'])} at the cap itself if the recipe is kept; its "
        "regret is then negative.",
        "",
        "| known about samples to target | strategy | regret after 60 s | after 5 min | after 10% of the run "
        "| runs below 1% by then | time spent probing | runs with a mean above the cap while probing "
        "| while training |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind, ways in data["regret"].items():
        for way, figures in ways.items():
            name = "wattune" if way == "guided" else way
            means = " | ".join(percent(figures[f"in_force {moment}"]["mean"]) for moment in ("60 s", "5 min", "10 %"))
            lines.append(
                f"| {KNOWN[kind]} | {name} | {means} | {100 * figures['in_force 10 %']['below 1 %']:.0f}% "
                f"| {figures['probing_s']:.0f} s | {figures['runs_above_probing']} of {figures['runs']} "
                f"| {figures['runs_above_training']} |"
            )
    return "\n".join(lines) + "\n"


def session_overhead() -> str:
    """CPU time that a session adds to a step, by kind of loop, and its share of the step."""
    lines = [
        "| loop | CPU time per step (median, 95% band) | share of the step time | step time at which it is 1% |",
        "|---|---|---|---|",
    ]
    for name, title in (("capped", "your own loop"), ("lightning", "Lightning"), ("transformers", "Transformers")):
        figures = read("session_overhead")[name]
        extra = figures["tiny"]["extra_s"]
        low, high = (1e3 * bound for bound in extra["band"])
        shares = ", ".join(f"{percent(one['overhead'])} of {1e3 * one['step_s']:.0f} ms" for one in steps_of(figures))
        least = 1e3 * figures["least_step_s"]
        lines.append(
            f"| {title} | {1e3 * extra['median']:.2f} ms ({low:.2f} to {high:.2f}) | {shares} | {least:.0f} ms |"
        )
    return "\n".join(lines) + "\n"


def steps_of(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """The results for steps of usual length, without the tiny model that only measures the difference."""
    return [one for size, one in figures.items() if size not in ("tiny", "least_step_s")]


def gpus() -> str:
    """Gain from choosing the batch size on real GPUs, from Zeus' public traces."""
    data = read("decisions")["gpus"]
    default, largest, ours = data["gain"]["default batch"], data["gain"]["largest batch"], data["regret"]["ours"]
    oracle, paid = data["best of all over default batch"], data["paid back"]
    pairs = ", ".join(f"{gpu_workload(name)} {times:.2f}" for name, times in default["by_group"].items())
    return (
        "On recorded training runs of real GPUs ([Zeus](https://github.com/ml-energy/zeus): V100 and A40, three "
        f"workloads, every power limit and target, {data['cases']} cases), wattune picks a batch size from "
        f"{ours['runs_mean']:.0f} whole training runs on average. With it, training reaches the target "
        f"{default['equal_weight']:.2f} times as fast as with the recipe's default batch size, if each pair of GPU and "
        f"workload counts equally (by cases {default['geometric_mean']:.2f}; the best batch size would give "
        f"{oracle['equal_weight']:.2f}). The pairs: {pairs}. {percent(default['loses'])} of the cases get slower, "
        f"{percent(default['loses_surely'])} by more than the error of the runs that judge them. Compared with the "
        f"largest batch that reaches the target, it is {largest['equal_weight']:.2f} times as fast. The pick is "
        f"{percent(ours['median'])} slower than the best batch size in the median, and {percent(ours['mean'])} on "
        f"average.\n\nThe runs to choose from take as long as {paid['cost_in_runs']:.0f} training runs. Where there is "
        f"a gain, they are paid back after {paid['median_if_ever']:.0f} training runs (median); in "
        f"{percent(paid['never'])} of the cases there is none, mostly because the default is kept.\n"
    )


def gpu_workload(group: str) -> str:
    """Name of a pair of GPU and workload in a sentence."""
    gpu, workload = group.split(" ", 1)
    return f"{workload} on {gpu.upper()}"


def decisions_gpus() -> str:
    """The ways to choose a batch size on real GPUs: as recorded, without marked runs, and with more epochs."""
    data = read("decisions")["gpus"]
    parts = {
        "as recorded": data,
        "without the marked runs": data["clean"],
        "and at least 8 epochs": data["clean, resolved"],
    }
    lines = [
        "| cases | way | regret: mean, median | runs (most) | times as fast as the default: equal weight, by cases | "
        "loses to the default (beyond the judge's error) |",
        "|---|---|---|---|---|---|",
    ]
    for name, part in parts.items():
        gains = {
            "ours": part["gain"]["default batch"],
            "ours, careful": part["ours, careful over default batch"],
            "ours, no own batch size": part["ours, no own batch size over default batch"],
            "best of all": part["best of all over default batch"],
        }
        for way, gain in gains.items():
            regret = part["regret"].get(way)
            shown = "-" if regret is None else f"{percent(regret['mean'])}, {percent(regret['median'])}"
            runs = "-" if regret is None else f"{regret['runs_mean']:.1f} ({regret['runs_max']})"
            lines.append(
                f"| {name} ({part['cases']}) | {way} | {shown} | {runs} | {gain['equal_weight']:.2f}, "
                f"{gain['geometric_mean']:.2f} | {percent(gain['loses'])} ({percent(gain['loses_surely'])}) |"
            )
    own = [part["ours"] for part in parts.values()]
    lines += [
        "",
        "Coverage of the 90% band: "
        + ", ".join(percent(one["coverage"]) for one in own)
        + "; "
        + ", ".join(percent(one["coverage_but_error"]) for one in own)
        + " if the judge's own error is allowed for. Realized relative to stated regret: "
        + ", ".join(f"{one['realised_over_stated']:.2f}" for one in own)
        + ".",
    ]
    return "\n".join(lines) + "\n"


def decisions_goals() -> str:
    """What planning for energy or the energy-delay product saves on real GPUs."""
    lines = [
        "| cases | goal | way | the default takes of it: by cases, equal weight, worst | times the energy | "
        "times as fast | loses (beyond the judge's error) |",
        "|---|---|---|---|---|---|---|",
    ]
    data = read("decisions")["goals"]
    for name, part in {"as recorded": data, "without the marked runs": data["clean"]}.items():
        for goal in ("energy", "edp"):
            for way, one in part["over default"][goal].items():
                lines.append(
                    f"| {name} ({part['cases']}) | {goal} | {way} | {one['geometric_mean']:.2f}, "
                    f"{one['equal_weight']:.2f}, {one['worst']:.2f} | {1 / one['energy']:.2f} | {one['time']:.2f} | "
                    f"{percent(one['loses'])} ({percent(one['loses_surely'])}) |"
                )
    return "\n".join(lines) + "\n"


def decisions_slowdown() -> str:
    """Energy and time with a slowdown of 5% at most, on each pair of GPU and workload."""
    data = read("decisions")["goals"]["slowdown"]
    groups = list(data["ours"]["over the fastest"]["by_group"])
    lines = [
        "| way | relative to | mean of six | " + " | ".join(map(gpu_workload, groups)) + " | cases over 5% slower |",
        "|---|---|---|" + "---|" * (len(groups) + 1),
    ]
    for way, both in data.items():
        for beside, words in (("over the fastest", "the fastest point"), ("over its own for time", "its own for time")):
            one = both[beside]
            if way == "best of all" and beside != "over the fastest":
                continue  # its own pick for time is the fastest point
            shown = " | ".join(
                f"{signed(at['energy'])} / {signed(at['time'])}" for at in (one, *one["by_group"].values())
            )
            lines.append(f"| {way} | {words} | {shown} | {percent(one['slower_than_allowed'])} |")
    return "\n".join(lines) + "\n"


def signed(share: float) -> str:
    """A share in percent with its sign."""
    return f"{100 * share:+.1f}%"


def decisions_tx2() -> str:
    """Guided profiling for the least energy on a recorded Jetson TX2."""
    lines = [
        "| way | more energy than the best: mean, ninth decile, worst | slower than the fastest | probes (most) | "
        "probes over the cap (by more than 1%) | worst | picks over |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in read("decisions")["goals"]["tx2"].items():
        regret = ", ".join(percent(one[f"energy_regret{what}"]) for what in ("", "_p90", "_worst"))
        probed = (
            f"{one['probes']:.1f} ({one['probes_most']}) | {one['probes_over']} ({one['probes_over_by_1_percent']}) | "
            f"{percent(one['worst_over'])} | {one['picks_over']} of {one['cases']}"
            if "probes" in one
            else "- | - | - | -"
        )
        lines.append(f"| {name} | {regret} | {percent(one['time'])} | {probed} |")
    return "\n".join(lines) + "\n"


def decisions_limits() -> str:
    """A power limit equal to the cap, beside the one that is planned."""
    lines = [
        "| job | GPUs | limit equal to the cap: times as long | times the energy | caps that it exceeds |",
        "|---|---|---|---|---|",
    ]
    for job, one in read("decisions")["limits"].items():
        name = job.split("+")[1]
        lines.append(
            f"| {name} | {one['gpus']} | {one['time']:.2f} | {one['energy']:.2f} | "
            f"{one['nominal_over']} of {one['caps']} |"
        )
    return "\n".join(lines) + "\n"


REACHED = {"aim": "aim met", "must": "requirement met", "missed": "missed"}
"""Outcome of a goal in the results -> the same in words."""


def decisions() -> str:
    """The figures of the decisions, each beside its goal."""
    lines = ["| figure | measured | required | aim | result |", "|---|---|---|---|---|"]
    for one in read("decisions")["targets"]["figures"]:
        shown = [percent(one[key]) if one["share"] else f"{one[key]:g}" for key in ("measured", "must", "aim")]
        lines.append(f"| {one['figure']} | {' | '.join(shown)} | {REACHED[one['reached']]} |")
    return "\n".join(lines) + "\n"


def ways(part: str) -> Callable[[], str]:
    """The ways to decide that one part of the decisions compares."""

    def table() -> str:
        lines = [
            "| way | regret at 0.98 of the cap: mean, median, worst | at the cap | probes (most) | probing time | "
            "boards with a probe over by more than 1% | worst probe | picks over |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for name, one in read("decisions")[part].items():
            regret, at_cap = one["all"], one["against the optimum at the cap"]
            shares = ", ".join(percent(regret[key]) for key in ("mean", "median", "worst"))
            lines.append(
                f"| {name} | {shares} | {percent(at_cap['mean'])} | {one['probes_mean']:.1f} ({one['probes_max']}) | "
                f"{one['probing_s']:.0f} s | {percent(one['boards_with_probe_surely_over'])} | "
                f"{percent(one['worst_overshoot'])} | {percent(one['picks_over'])} |"
            )
        return "\n".join(lines) + "\n"

    return table


def beginning() -> str:
    """The recorded null result of the first-tenth comparison, which is no longer part of wattune."""
    figures = read("decisions")["beginning"]
    lines = [
        "| batch size after the first tenth | regret on the target | change (90% interval) |",
        "|---|---|---|",
    ]
    for name, one in figures["regret"].items():
        less = one["against kept"]
        ends = f"{100 * less['low']:+.2f} to {100 * less['high']:+.2f}"
        apart = f"{100 * less['difference']:+.2f}% ({ends})" if one["changed"] else "-"
        lines.append(f"| {name} | {100 * one['mean']:.2f}% | {apart} |")
    progress, estimates = figures["progress"], figures["samples"]
    off = estimates["outside the band"]
    lines += [
        "",
        f"The progress is inside its 90% band in {percent(progress['inside'])} of {progress['cases']} cases, the "
        f"noise scale in {percent(figures['noise']['inside'])}. ln(samples) is off by {estimates['all']['off']:.2f} in "
        f"the first prediction and by {estimates['all']['anew']:.2f} in the second; if the progress is outside the "
        f"band ({off['cases']} cases), by {off['off']:.2f} and {off['anew']:.2f}.",
    ]
    return "\n".join(lines) + "\n"


def asyncfgd(part: str) -> Callable[[], str]:
    """Function that returns the text of one part of that benchmark."""

    def text_of_part() -> str:
        text: str = importlib.import_module(f"benchmarks.asyncfgd.{part}").markdown(read(f"asyncfgd_{part}"))
        return text

    return text_of_part


def asyncfgd_verdict() -> str:
    """Sentences about the cases in which forward gradients and AsyncFGD would be chosen."""
    from benchmarks.asyncfgd.feasibility import verdict

    results = read("asyncfgd_feasibility")
    return f"Evaluated on `sim:{results['board']}` with small models and synthetic memory limits. {verdict(results)}\n"


def server_fleet() -> str:
    """A fleet of simulated clients against a real server."""
    from benchmarks.server.fleet import NAME
    from benchmarks.server.fleet_tables import markdown

    return markdown(read(NAME))


def server_verdict() -> str:
    """Capacity of one server, in two sentences."""
    from benchmarks.server import overlap
    from benchmarks.server.fleet import NAME
    from benchmarks.server.fleet_tables import verdict

    return verdict(read(NAME)) + overlap.verdict(read(overlap.NAME))


def server_overlap() -> str:
    """Profiling on the device while the server estimates."""
    from benchmarks.server import overlap

    return overlap.markdown(read(overlap.NAME))


def contributed() -> str:
    """Boards measured by users, and rows computed from recorded public data."""
    from benchmarks.contributed import NAME, contributions, markdown

    return markdown(contributions(), read(NAME))


def moving_caps() -> str:
    """Progress under caps that change, and the time above them."""
    data = read("moving_caps")
    lines = [
        f"{data['days']} generated days of each kind, each planned with its own caps: mean (worst day). "
        "*Simulated* boards train ResNet-8, with samples to target assumed to grow as 1 + b/30; the recorded GPU "
        "trains ShuffleNetV2 by the epochs that it needed.",
        "",
        "| device | day | of the progress of the fastest point under each cap | times the best single point |",
        "|---|---|---|---|",
    ]
    for board in data["boards"]:
        for kind, row in board["of"].items():
            lines.append(
                f"| {board['device']}, {board['kind']} | {kind} | {percent(row['of_clairvoyant'])} "
                f"({percent(row['of_clairvoyant_worst'])}) | {row['over_constant']:.2f} "
                f"({row['over_constant_worst']:.2f}) |"
            )
    lines += [
        "",
        f"The goals are 96% and 1.2 times. Simulated boards, through the limiter, with "
        f"{data['limiter'][0]['caps']} caps each; exact time with the mean over "
        f"{data['limiter'][0]['announced']['window_s']:g} s above the cap:",
        "",
        "| device | lowerings | announced | not announced: in all, longest |",
        "|---|---|---|---|",
        *(
            f"| {row['device']} | {row['lowerings']} | {row['announced']['above_s']:.2g} s | "
            f"{row['unannounced']['above_s']:.1f} s, {row['unannounced']['most_above_s']:.2f} s |"
            for row in data["limiter"]
        ),
    ]
    return "\n".join(lines) + "\n"


def carbon() -> str:
    """Carbon of times to train at, over the fastest point at once."""
    data = read("carbon")
    names = (
        "least energy, at once",
        "fastest, at its times",
        "least energy, at its times",
        "point and times together",
        "perfect foresight",
    )
    lines = [
        f"A job of {data['job_h']:g} h, begun at {data['starts']} moments of a recorded month, on *simulated* boards: "
        "carbon relative to the fastest point at once, mean.",
        "",
        "| device | deadline | " + " | ".join(names) + " | above perfect foresight |",
        "|---|---|" + "---|" * (len(names) + 1),
    ]
    for row in data["rows"]:
        cells = " | ".join(f"{row[name]:.2f}" for name in names)
        above = percent(row["above perfect foresight"])
        lines.append(f"| {row['device']} | {row['slack']:g} times the job | {cells} | {above} |")
    return "\n".join(lines) + "\n"


def federated() -> str:
    """Time and energy until a fleet reaches the target accuracy, over FedAvg with equal steps."""
    data = read("federated")
    lines = [
        f"{data['clients']} *simulated* clients on {len(data['boards'])} kinds of boards until the test accuracy is "
        f"{data['target']:.0%}: median of {data['seeds']} seeds (lowest to highest), over FedAvg with equal steps.",
        "",
        "| strategy | a round | rounds | faster | energy saved |",
        "|---|---|---|---|---|",
    ]
    for row in data["time"]:
        faster, saved = row["faster"], row["energy_saved"]
        lines.append(
            f"| {row['policy']} | {row['round_s']:.2f} s | {row['rounds']:g} | "
            f"{faster[0]:.1f} times ({faster[1]:.1f} to {faster[2]:.1f}) | "
            f"{percent(saved[0])} ({percent(saved[1])} to {percent(saved[2])}) |"
        )
    return "\n".join(lines) + "\n"


def federated_energy() -> str:
    """Energy of rounds with equal steps and deadlines, below that at the top."""
    rows = read("federated")["energy"]
    lines = [
        "Energy of training saved in a round until the same deadline, over equal steps at the highest clocks under the "
        "cap (median, lowest to highest). Deadlines are multiples of the slowest client's time at the top, or of each "
        "client's own. *Most*: no choice of points under the caps saves more, at any deadline. *By speed*: as many "
        "steps in total, shared as by default. *Recorded*: a real TX2, by BoFL.",
        "",
        "| clients | deadline | equal steps, one for all | equal steps, one each | most | by speed, one for all |",
        "|---|---|---|---|---|---|",
    ]
    for fleet, slack in dict.fromkeys((row["fleet"], row["slack"]) for row in rows):
        own = [row for row in rows if (row["fleet"], row["slack"]) == (fleet, slack)]
        cells = []
        for name in ("one deadline", "each", "most", "by speed"):
            values = sorted(row[name] for row in own)
            spread = f" ({percent(values[0])} to {percent(values[-1])})" if len(values) > 1 else ""
            cells.append(percent(statistics.median(values)) + spread)
        label = {"caps": "simulated, capped", "no caps": "simulated, no cap"}.get(fleet, fleet)
        lines.append(f"| {label} | {slack:g} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def ranks() -> str:
    """Several devices under one budget: the division of the watts, killed ranks, and the session's own time."""
    data, killed, overhead = read("ranks_division"), read("ranks_killed"), read("ranks_overhead")
    *smaller, largest = sorted({case["ranks"] for case in data["cases"]})
    sizes = f"{', '.join(map(str, smaller))} and {largest}"
    lines = [
        f"Real jobs of {sizes} processes train a small network over gloo on *simulated* boards (`{data['board']}`, "
        "slower and with more clocks), in a session each. Steps per second where the session settled, relative to a "
        "session with equal limits (cap / N for each board) and to the best division that there is, micro-batches "
        "included:",
        "",
        '| boards | cases | `over="node"` over equal limits: median (lowest to highest) '
        "| of the best division: mean (lowest to highest) | time above the cap |",
        "|---|---|---|---|---|",
    ]
    names = {
        "spread": f"one kind, power at equal clock {100 * data['spread']:.0f}% apart (standard deviation)",
        "mixed": "every second one twice as fast at the same power",
    }
    for name, words in names.items():
        kind = data["summary"][name]
        over = f"{kind['over_equal_median']:.2f} ({kind['over_equal_lowest']:.2f} to {kind['over_equal_highest']:.2f})"
        of_best = f"{kind['of_best_mean']:.0%} ({kind['of_best_lowest']:.0%} to {kind['of_best_highest']:.0%})"
        above = f"{kind['above_cap_s']:.3g} of {kind['time_s']:.0f} s"
        lines.append(f"| {words} | {kind['cases']} | {over} | {of_best} | {above} |")
    lines += ["", ranks_pairs(data), "", ranks_losses()]
    result = killed["summary"]
    own_us = [rank["median_us"] for rank in overhead["by_rank"].values()]
    lines += [
        "",
        f"One of {killed['ranks']} ranks was killed, at {result['moments']} moments, on boards that are folders with "
        f"the files of real ones: in {result['restored']} cases all files were restored (after "
        f"{result['restored_s_median']:.1f} s, {result['restored_s_longest']:.1f} s at most), and in "
        f"{result['ended_clearly']} the others ended with an error that names it (after "
        f"{result['ended_s_median']:.1f} s, {result['ended_s_longest']:.1f} s at most).",
        "",
        f"With {overhead['ranks']} ranks, the session adds {min(own_us):.0f} to {max(own_us):.0f} us of CPU time to a "
        "step on each rank.",
        "",
        recorded_ranks(),
    ]
    return "\n".join(lines) + "\n"


def ranks_pairs(data: dict[str, Any]) -> str:
    """The jobs of two ranks, measured again, beside the same ones of ``data``."""
    again, before = read("ranks_pairs"), [case for case in data["cases"] if case["ranks"] == 2]
    parts, above_s, time_s = [], 0.0, 0.0
    for name, words in (("spread", "one kind"), ("mixed", "mixed kinds")):
        kind = again["summary"][name]
        was = [case["of_best"] for case in before if case["kind"] == name]
        was_over = statistics.median(case["over_equal"] for case in before if case["kind"] == name)
        parts.append(
            f"{kind['of_best_mean']:.0%} of the best division instead of {statistics.fmean(was):.0%}, and "
            f"{kind['over_equal_median']:.2f} times the steps of equal limits instead of {was_over:.2f}, with {words}"
        )
        above_s, time_s = above_s + kind["above_cap_s"], time_s + kind["time_s"]
    return (
        "The table dates from when a search used 24 values of a clock; these boards have 49. The "
        f"{len(again['cases'])} jobs of two processes were measured again with all of them: {'; '.join(parts)}; above "
        f"the cap for {above_s:.3g} of {time_s:.0f} s."
    )


def ranks_losses() -> str:
    """What the jobs miss of the best division, by cause."""
    exact, jobs = read("ranks_losses")["summary"], read("ranks_pairs")["summary"]
    sizes = sorted({int(name.split()[0]) for name in exact})
    parts, searched = [], []
    for kind, words in (("spread", "of one kind"), ("mixed", "of mixed kinds")):
        shares = [f"{exact[f'{ranks} {kind}']['equal times']:.0%}" for ranks in sizes]
        parts.append(f"{', '.join(shares[:-1])} and {shares[-1]} for boards {words}")
        missed = 1 - jobs[kind]["of_best_mean"]
        divided = 1 - exact[f"2 {kind}"]["equal times"]
        searched.append(f"{100 * divided:.1f} of the {100 * missed:.1f} points that jobs of two boards {words} miss")
    least = min(row["least power"] for row in exact.values())
    *smaller, largest = sizes
    return (
        f"By the boards' exact figures, without a search, equal times reach {'; '.join(parts)} "
        f"({', '.join(map(str, smaller))} and {largest} boards); each board at the setting at which it draws least at "
        f"that pace, waiting included, {least:.0%}. So the division costs {' and '.join(searched)}, and the search "
        "costs the rest."
    )


def recorded_ranks() -> str:
    """The recorded job of four cards."""
    tables = read("ranks_recorded")["tables"]
    gains = " and ".join(f"{table['gain_mean']:.2f}" for table in tables)
    apart = " and ".join(f"{100 * table['cards_apart']:.0f}%" for table in tables)
    ranges = " and ".join(f"{100 * table['rate_range']:.0f}%" for table in tables)
    return (
        f"On recorded jobs of four A40s (ResNet-18 and ResNet-50), one budget gives {gains} times the steps of equal "
        f"limits on average. The loader sets their pace: steps per second differ by only {ranges} between limits of "
        f"100 and 300 W each, and the cards by {apart} in power, so there is little to divide."
    )


def beside() -> str:
    """Requests within their bound beside training, and its throughput, over all cases."""
    from benchmarks.beside import summary

    data = read("beside")
    cases = data["cases"]
    served = [case for case in cases if case["best"] is not None]
    both = [
        case
        for case in served
        if case["wattune"] is not None and case["wattune"]["within"] >= 0.97 and case["wattune"]["of_best"] >= 0.93
    ]
    bounds = sorted({case["bound_s"] for case in cases})
    rates = sorted({case["rate_hz"] for case in cases})
    lines = [
        f"*Simulated* boards train ResNet-8 at batch size {data['batch_size']} beside requests of {data['images']} "
        f"images each, whose work the GPU does in turn. {len(cases)} cases: {len({case['device'] for case in cases})} "
        f"boards, {len({case['cap_share'] for case in cases})} caps, bounds of "
        f"{', '.join(f'{1e3 * bound:g}' for bound in bounds)} ms, random arrivals at "
        f"{', '.join(f'{rate:g}' for rate in rates)} a second, which the plan does not know. The best point is the "
        "fastest of all clocks and micro-batch sizes under the cap that answers 97% of the requests in time, found by "
        "trying all of them with the same arrivals. A plan that is faster, but late, counts as 100%.",
        "",
        "| rule | requests in time: all (worst case) | throughput of the best: mean (worst case) |",
        "|---|---|---|",
    ]
    names = {
        "wattune": "wattune's plan",
        "largest micro-batch": "fastest point with the whole batch, requests between steps",
        "smallest micro-batch": "fastest point with micro-batches of one sample",
    }
    for rule, name in names.items():
        row = summary(cases, rule)
        lines.append(
            f"| {name} | {percent(row['within'])} ({percent(row['within_worst'])}) | {percent(row['of_best'])} "
            f"({percent(row['of_best_worst'])}) |"
        )
    lines += ["", "| device | bound | requests in time | throughput of the best |", "|---|---|---|---|"]
    for device in dict.fromkeys(case["device"] for case in cases):
        for bound in bounds:
            part = [case for case in cases if case["device"] == device and case["bound_s"] == bound]
            row = summary(part, "wattune")
            lines.append(
                f"| {device} | {1e3 * bound:g} ms, a request alone {1e3 * part[0]['service_s']:.1f} ms | "
                f"{percent(row['within'])} ({percent(row['within_worst'])}) | {percent(row['of_best'])} "
                f"({percent(row['of_best_worst'])}) |"
            )
    lines += [
        "",
        f"The goals are 97% and 93%; both are reached in {len(both)} of {len(served)} cases. The others have a bound "
        "of a few times the service's own time: requests that queue behind each other then need more room than one "
        "micro-batch leaves, or the assumption on low clocks costs a faster point.",
    ]
    return "\n".join(lines) + "\n"


def sun() -> str:
    """Training from a battery and a panel over the real sun."""
    data = read("sun")
    begins = {"full": "full at the start", "random": "30 to 100 % full at the start"}
    lines = [
        f"{data['work_h']:g} hours of ResNet-8 at the fastest point from a panel and a battery with a reserve of "
        f"{percent(data['reserve'])}, over the recorded sun of {len(data['cities'])} cities in 29 days, with a start "
        "every 6 hours at which the resting board can hold the reserve. Boards and batteries are *simulated*. The "
        "clairvoyant knows the sun, and waits as the policy does; mean and worst are over all starts. A start crosses "
        "if the charge is ever below the reserve until a day after the end.",
    ]
    for case in data["cases"]:
        lines += [
            "",
            f"**{case['device']}**, {case['battery_wh']:g} Wh, {case['panel_w']:g} W, {begins[case['charge']]}, "
            f"{case['starts']} starts; {case['rest_w']:.2g} W at rest, {case['suspended_w']:.2g} W suspended "
            "(assumed: a fifth of rest, and 10 s awake every 15 min):",
            "",
            "| policy | mean time | time / clairvoyant (worst) | starts that cross | under the reserve |",
            "|---|---|---|---|---|",
            *(
                f"| {name} | {row['hours']:.1f} h | {row['over']:.2f} ({row['over_worst']:.1f}) | {row['cross']} | "
                f"{row['under_h']:.0f} h |"
                for name, row in case["policies"].items()
            ),
        ]
    of_modes = {
        mode: [case["policies"][f"rule, {mode}"]["over"] for case in data["cases"]] for mode in ("strict", "soon")
    }
    lines += [
        "",
        "The goals are a reserve that strict never crosses, and 1.35 (strict) and 1.15 (soon) times the clairvoyant: "
        f"strict takes {min(of_modes['strict']):.2f} to {max(of_modes['strict']):.2f} times, soon "
        f"{min(of_modes['soon']):.2f} to {max(of_modes['soon']):.2f} times.",
    ]
    return "\n".join(lines) + "\n"


CALIBRATION = ("cells", "checks", "constants", "fits", "power")


def calibration(part: str) -> Callable[[], str]:
    """Function that returns the text of one part of the calibration of the simulated boards."""

    def text_of_part() -> str:
        from benchmarks.paper.calibration import NAME, markdown

        return markdown(part, read(NAME))

    return text_of_part


def paper() -> str:
    """The evaluation of arXiv 2502.18323."""
    from benchmarks.paper.sections import markdown, results

    return markdown(results())


def paper_verdict() -> str:
    """Outcome of that evaluation, in two sentences."""
    from benchmarks.paper.sections import results, verdict

    return verdict(results())


def jetsons() -> str:
    """Strategies of profiling on the recorded TX2, with three clocks to set."""
    data = read("jetsons")
    oracle = data["strategies"]["oracle"]
    lines = [
        f"{data['cases']} cases: three workloads, {data['caps']} caps each. Choosing all three clocks exactly right "
        f"would be {oracle['over_gpu_clock_alone']:.2f} times as fast as the best GPU clock with memory and CPU clock "
        f"at their highest, and {oracle['over_best_constant']:.2f} times as fast as the best GPU clock with the best "
        f"constant clocks of memory ({data['constant']['memory_clock_mhz']:g} MHz) and CPU "
        f"({data['constant']['cpu_clock_mhz']:g} MHz). The fastest setting that leaves 1.5% of the cap unused, as the "
        f"noise of a probe asks for, has a regret of {percent(oracle['regret_with_room'])}: settings are far apart.",
        "",
        "| strategy | probes | regret, mean | in 9 of 10 cases at most | worst | probes above the cap by more than 1% "
        "| picks above it | times as fast as the GPU clock alone |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in data["strategies"].items():
        if name != "oracle":
            lines.append(
                f"| {name} | {row['probes']:.1f} | {percent(row['regret_mean'])} | {percent(row['regret_p90'])} "
                f"| {percent(row['regret_worst'])} | {row['probes_over_a_case']:.2f} a case, by "
                f"{percent(row['worst_over'])} at most | {row['picks_over']} | {row['over_gpu_clock_alone']:.2f} |"
            )
    return "\n".join(lines) + "\n"


def tx2_nx() -> str:
    """The TX2 NX, derived from the TX2."""
    from benchmarks.tx2_figures import markdown_nx

    return markdown_nx(read("tx2_calibration")["tx2_nx"])


def tx2_calibration() -> str:
    """Errors of the simulated TX2 beside a recorded one."""
    from benchmarks.tx2_figures import markdown

    return markdown(read("tx2_calibration"))


def stacked_runs() -> str:
    """Throughput of runs trained as one program, and the choice of the batch size with several seeds at once."""
    data = read("stacked_runs")
    width, machine = data["width"], data["machine"]
    lines = [
        f"{width * data['processes']} seeds of one batch size on {data['processes']} processes with one thread each "
        f"({machine['cores']} shared cores of an {machine['cpu']}): {width} separate runs in each process, or a stack "
        f"of {width}. Median (least to most) of {data['pairs']} pairs; evaluations included.",
        "",
        "| model | batch size | throughput, by CPU time | wall-clock | largest difference after 50 steps |",
        "|---|---|---|---|---|",
    ]
    for row in data["rows"]:
        start = f"| {row['workload']} | {row['batch_size']} |"
        if "refused" in row:
            lines.append(f"{start} refused: {row['refused']} | | |")
            continue
        cpu, wall = (f"{row[w]['factor']:.1f} ({row[w]['least']:.1f} to {row[w]['most']:.1f})" for w in ("cpu", "wall"))
        difference = f"{row['difference']:.0e}" if row["is_stacked"] else "trained separately: too little gain"
        lines.append(f"{start} {cpu} | {wall} | {difference} |")
    whole, one = data["sweep"], data["sweep"]["factor"]
    sizes = ", ".join(map(str, whole["stacked_batch_sizes"])) or "none"
    lines += [
        "",
        f"A whole sweep of the perceptron ({whole['runs']} runs, each to its target; checks, traces and process starts "
        f"included) takes {whole['stacked_s']:.0f} s in place of {whole['separate_s']:.0f} s (medians of three pairs; "
        f"by pairs {one['least']:.2f} to {one['most']:.2f} times as fast). Stacked were the batch sizes {sizes}; runs "
        f"at the others are too short. {whole['same_ends']} of the {whole['runs']} runs end at the same sample as the "
        "separate ones.",
        "",
        "Several seeds of each of the first three batch sizes of the pooled strategy, on recorded runs with random "
        "devices. A stack of three may take up to a third longer than one run, which is not counted here:",
        "",
        "| runs | seeds at first | requests | runs | time of the longest run of each request | mean regret "
        "| less that of one seed, 90% interval |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, rows in data["seeds_at_once"].items():
        for seeds, row in rows.items():
            lines.append(
                f"| {name} | {seeds} | {row['requests_mean']:.1f} | {row['runs_mean']:.1f} | {row['longest']:.0%} "
                f"| {row['regret']['mean']:.2%} ± {row['regret']['se']:.2%} "
                + ("| |" if seeds == "1" else "| {low:+.2%} to {high:+.2%} |".format(**row["against one"]))
            )
    return "\n".join(lines) + "\n"


PARTS: dict[str, Callable[[], str]] = {
    **{
        f"asyncfgd_{part}": asyncfgd(part)
        for part in ("accuracy", "exact_end", "feasibility", "memory", "speed", "staleness")
    },
    "asyncfgd_verdict": asyncfgd_verdict,
    "beginning": beginning,
    "beside": beside,
    "ranks": ranks,
    "boards": boards,
    "agent_cost": agent_cost,
    **{f"calibration_{part}": calibration(f"calibration_{part}") for part in CALIBRATION},
    "comparison": comparison,
    "contributed": contributed,
    "decisions": decisions,
    **{f"decisions_{part}": ways(part) for part in ("profiling", "pipeline")},
    "decisions_goals": decisions_goals,
    "decisions_gpus": decisions_gpus,
    "decisions_limits": decisions_limits,
    "decisions_slowdown": decisions_slowdown,
    "decisions_tx2": decisions_tx2,
    "gpus": gpus,
    "headline": headline,
    "jetsons": jetsons,
    "moving_caps": moving_caps,
    "carbon": carbon,
    "federated": federated,
    "federated_energy": federated_energy,
    "paper": paper,
    "paper_verdict": paper_verdict,
    "profiling_cost": profiling_cost,
    "real_images": real_images,
    "server_fleet": server_fleet,
    "server_overlap": server_overlap,
    "server_verdict": server_verdict,
    "session": session,
    "session_overhead": session_overhead,
    "speed": speed,
    "stacked_runs": stacked_runs,
    "sun": sun,
    "sweep": sweep,
    "tx2_calibration": tx2_calibration,
    "tx2_nx": tx2_nx,
}


def main() -> None:
    """Fill every page."""
    for page in PAGES:
        page.write_text(filled(page.read_text()))
        print(f"{page.name} filled")


if __name__ == "__main__":
    main()
