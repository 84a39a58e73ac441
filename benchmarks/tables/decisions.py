"""Choices of batch size and clocks, judged on simulated and recorded devices."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables.results import percent, read, signed


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


PARTS: dict[str, Callable[[], str]] = {
    "beginning": beginning,
    "decisions": decisions,
    **{f"decisions_{part}": ways(part) for part in ("profiling", "pipeline")},
    "decisions_goals": decisions_goals,
    "decisions_gpus": decisions_gpus,
    "decisions_limits": decisions_limits,
    "decisions_slowdown": decisions_slowdown,
    "decisions_tx2": decisions_tx2,
    "gpus": gpus,
}
