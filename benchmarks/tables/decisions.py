"""Choices of batch size and clocks, judged on simulated and recorded devices."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables.results import percent, read


def gpus() -> str:
    """Gain from choosing the batch size on real GPUs, from Zeus' public traces."""
    data = read("decisions")["gpus"]
    default, largest, ours = data["gain"]["default batch"], data["gain"]["largest batch"], data["regret"]["ours"]
    oracle, paid = data["best of all over default batch"], data["paid back"]
    pairs = default["by_group"].values()
    return (
        "On recorded training runs of real GPUs ([Zeus](https://github.com/ml-energy/zeus): V100 and A40, three "
        f"workloads, every power limit and target, {data['cases']} cases), wattune picks a batch size from "
        f"{ours['runs_mean']:.0f} whole training runs on average. With it, training reaches the target "
        f"{default['equal_weight']:.2f} times as fast as with the recipe's default batch size: the geometric mean over "
        f"{len(pairs)} pairs of GPU and workload, {min(pairs):.2f} to {max(pairs):.2f} (by cases "
        f"{default['geometric_mean']:.2f}; the best batch size would give {oracle['equal_weight']:.2f}). "
        f"{percent(default['loses'])} of the cases get slower, "
        f"{percent(default['loses_surely'])} by more than the error of the runs that judge them. Compared with the "
        f"largest batch that reaches the target, it is {largest['equal_weight']:.2f} times as fast. The pick is "
        f"{percent(ours['median'])} slower than the best batch size in the median, and {percent(ours['mean'])} on "
        f"average.\n\nThe runs to choose from take as long as {paid['cost_in_runs']:.0f} training runs. Where there is "
        f"a gain, they are paid back after {paid['median_if_ever']:.0f} training runs (median); in "
        f"{percent(paid['never'])} of the cases there is none, mostly because the default is kept.\n"
    )


def decisions_gpus() -> str:
    """The ways to choose a batch size on real GPUs."""
    data = read("decisions")["gpus"]
    lines = [
        "| way | regret: mean, median | runs (most) | times as fast as the default: equal weight, by cases | "
        "loses to the default (beyond the judge's error) |",
        "|---|---|---|---|---|",
    ]
    gains = {
        "ours": data["gain"]["default batch"],
        "ours, no own batch size": data["ours, no own batch size over default batch"],
        "best of all": data["best of all over default batch"],
    }
    for way, gain in gains.items():
        regret = data["regret"].get(way)
        shown = "-" if regret is None else f"{percent(regret['mean'])}, {percent(regret['median'])}"
        runs = "-" if regret is None else f"{regret['runs_mean']:.1f} ({regret['runs_max']})"
        lines.append(
            f"| {way} | {shown} | {runs} | {gain['equal_weight']:.2f}, {gain['geometric_mean']:.2f} | "
            f"{percent(gain['loses'])} ({percent(gain['loses_surely'])}) |"
        )
    own = data["ours"]
    lines += [
        "",
        f"{data['cases']} cases. Coverage of the 90% band: {percent(own['coverage'])}; "
        f"{percent(own['coverage_but_error'])} if the judge's own error is allowed for. Realized relative to stated "
        f"regret: {own['realised_over_stated']:.2f}.",
    ]
    return "\n".join(lines) + "\n"


def mlperf() -> str:
    """What the batch size is worth in MLPerf's reference runs."""
    data = read("decisions")["mlperf"]
    ours, two, largest = data["ours"], data["ours, two runs"], data["largest"]
    return (
        f"On MLPerf's own reference runs (seven benchmarks, the recipe tuned at each batch size, {ours['cases']} "
        f"devices drawn), the largest batch takes {percent(largest['mean'])} more time to the target than the best "
        f"one, in the arithmetic mean. wattune's choice takes {percent(ours['mean'])} more after "
        f"{ours['runs_mean']:.1f} runs, and {percent(two['mean'])} more after two; it is slower than your own batch "
        f"size in {percent(ours['slower_than_own'])} of the cases, and in {percent(two['slower_than_own'])} after two "
        "runs.\n"
    )


def decisions_mlperf() -> str:
    """The ways to choose a batch size for MLPerf's benchmarks."""
    lines = [
        "| way | regret: mean (se), median, p90, worst | runs | slower than your own | coverage of the 90% band |",
        "|---|---|---|---|---|",
    ]
    for name, one in read("decisions")["mlperf"].items():
        shares = ", ".join(percent(one[key]) for key in ("median", "p90", "worst"))
        coverage = percent(one["coverage"]) if "coverage" in one else "-"
        lines.append(
            f"| {name} | {percent(one['mean'])} ({percent(one['se'])}), {shares} | {one['runs_mean']:.1f} | "
            f"{percent(one['slower_than_own'])} | {coverage} |"
        )
    return "\n".join(lines) + "\n"


def decisions_levels() -> str:
    """Levels of the proxy's target, and what progress in training tells of the proxy."""
    data = read("decisions")["levels"]
    families = list(data["ways"]["ours"][data["auto"]])
    lines = [
        f"| target of the proxy, as a share of the way to its plateau | runs | {' | '.join(families)} |",
        "|---|---|" + "---|" * len(families),
    ]
    for way, rules in data["ways"].items():
        for rule, regrets in rules.items():
            shares = [f"{percent(one['mean'])}, {percent(one['p90'])}" for one in regrets.values()]
            lines.append(f"| {rule}{', as `auto`' if rule == data['auto'] else ''} | {way} | {' | '.join(shares)} |")
    told = data["progress"]
    return "\n".join(lines) + (
        "\n\nHow far a run's progress at a tenth of the predicted samples is from the proxy's does not tell how far "
        "the relative samples at its batch size are from the proxy's: their rank correlation over targets, rates, "
        f"levels and batch sizes is {told['correlation']:.2f} (p {told['p']:.2f}, {told['count']} pairs).\n"
    )


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


PARTS: dict[str, Callable[[], str]] = {
    **{f"decisions_{part}": ways(part) for part in ("profiling", "pipeline")},
    "decisions_gpus": decisions_gpus,
    "decisions_levels": decisions_levels,
    "decisions_mlperf": decisions_mlperf,
    "gpus": gpus,
    "mlperf": mlperf,
}
