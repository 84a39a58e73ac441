"""Choices of batch size and clocks on simulated and recorded devices, and what they gain."""

from __future__ import annotations

from functools import partial

from benchmarks.tables.results import percent, read, table


def headline() -> str:
    """Headline: clocks on a recorded Jetson, batch size in MLPerf's runs, and the paper's tables replayed."""
    from benchmarks.paper.sections import behind

    clocks, decisions, script, replay = read("jetsons"), read("decisions"), read("script"), read("paper_replay")
    ours, mlperf, summary = clocks["wattune"], decisions["mlperf"], replay["summary"]
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
    lines = []
    for rows in zip(*(board["rows"] for board in boards), strict=True):
        cells = (
            row["why_not"]
            if row["time_s"] is None
            else f"{row['batch_size']} at {row['clock_mhz']:g} MHz: {row['time_s']:.1f} ± {row['time_std_s']:.1f} s, "
            f"{row['energy_j']:.0f} J ({row['speed_up']:.2f})"
            for row in rows
        )
        lines.append((rows[0]["rule"], *cells))
    heads = " | ".join(f"`{board['device']}`, cap {board['cap_w']:g} W" for board in boards)
    text = "Time and energy simulated, samples from real training runs; in brackets, time relative to wattune:"
    return f"{text}\n\n{table(f' | {heads}', lines)}"


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


# ---------------------------------------------------------------------------------------------------------- batch sizes


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
    gains = {
        "ours": data["gain"]["default batch"],
        "ours, no own batch size": data["ours, no own batch size over default batch"],
        "best of all": data["best of all over default batch"],
    }
    rows = []
    for way, gain in gains.items():
        shown = runs = "-"
        if regret := data["regret"].get(way):
            shown = f"{percent(regret['mean'])}, {percent(regret['median'])}"
            runs = f"{regret['runs_mean']:.1f} ({regret['runs_max']})"
        gained = f"{gain['equal_weight']:.2f}, {gain['geometric_mean']:.2f}"
        rows.append((way, shown, runs, gained, f"{percent(gain['loses'])} ({percent(gain['loses_surely'])})"))
    own = data["ours"]
    return table(
        "way | regret: mean, median | runs (most) | times as fast as the default: equal weight, by cases | loses to "
        "the default (beyond the judge's error)",
        rows,
    ) + (
        f"\n{data['cases']} cases. Coverage of the 90% band: {percent(own['coverage'])}; "
        f"{percent(own['coverage_but_error'])} if the judge's own error is allowed for. Realized relative to stated "
        f"regret: {own['realised_over_stated']:.2f}.\n"
    )


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
    rows = []
    for name, one in read("decisions")["mlperf"].items():
        shares = ", ".join(percent(one[key]) for key in ("median", "p90", "worst"))
        coverage = percent(one["coverage"]) if "coverage" in one else "-"
        regret = f"{percent(one['mean'])} ({percent(one['se'])}), {shares}"
        rows.append((name, regret, f"{one['runs_mean']:.1f}", percent(one["slower_than_own"]), coverage))
    return table(
        "way | regret: mean (se), median, p90, worst | runs | slower than your own | coverage of the 90% band", rows
    )


def decisions_levels() -> str:
    """Levels of the proxy's target."""
    data = read("decisions")["levels"]
    rows = []
    for way, rules in data["ways"].items():
        for rule, regrets in rules.items():
            shares = [f"{percent(one['mean'])}, {percent(one['p90'])}" for one in regrets.values()]
            rows.append((f"{rule}{', as `auto`' if rule == data['auto'] else ''}", way, *shares))
    families = " | ".join(data["ways"]["ours"][data["auto"]])
    return table(f"target of the proxy, as a share of the way to its plateau | runs | {families}", rows)


def ways(part: str) -> str:
    """The ways to decide that one part of the decisions compares."""
    rows = []
    for name, one in read("decisions")[part].items():
        regret, at_cap = one["all"], one["against the optimum at the cap"]
        rows.append(
            (
                name,
                ", ".join(percent(regret[key]) for key in ("mean", "median", "worst")),
                percent(at_cap["mean"]),
                f"{one['probes_mean']:.1f} ({one['probes_max']})",
                f"{one['probing_s']:.0f} s",
                percent(one["boards_with_probe_surely_over"]),
                percent(one["worst_overshoot"]),
                percent(one["picks_over"]),
            )
        )
    return table(
        "way | regret at 0.98 of the cap: mean, median, worst | at the cap | probes (most) | probing time | boards "
        "with a probe over by more than 1% | worst probe | picks over",
        rows,
    )


decisions_profiling = partial(ways, "profiling")
decisions_pipeline = partial(ways, "pipeline")


# --------------------------------------------------------------------------------------------------------------- clocks


def jetsons() -> str:
    """The search on the recorded TX2, with three clocks to set."""
    data = read("jetsons")
    oracle, row = data["oracle"], data["wattune"]
    cells = [
        f"{row['probes']:.1f}",
        *(percent(row[f"regret_{key}"]) for key in ("mean", "p90", "worst")),
        row["without_a_pick"],
        f"{row['probes_over_a_case']:.2f} a case, by {percent(row['worst_over'])} at most",
        row["picks_over"],
    ]
    text = (
        f"{data['cases']} cases: two workloads, {data['caps']} caps from the least power of all settings on, "
        f"{data['seeds']} seeds. In {oracle['without_gpu_clock_alone']} of them no GPU clock "
        "alone stays below the cap; in the others, choosing all three clocks exactly right would be "
        f"{oracle['over_gpu_clock_alone']:.2f} times as fast. The fastest setting that leaves 1.5% of the cap unused "
        f"has a regret of {percent(oracle['regret_with_room'])}; in {oracle['without_room']} cases there is none. "
        f"In the others, wattune loses {percent(row['beyond_room'])} beyond that.\n\n"
    ) + table(
        "probes | regret, mean | in 9 of 10 cases at most | worst | without a pick | probes above the cap by more than "
        "1% | picks above it by more than 0.5%",
        [cells],
    )
    with_room, limits = row["with_room"], data["power_limits"]
    short, long = data["training"].values()
    names = {"judged": "two workloads", "all": "three, with the one tuned on"}
    by_gpu_clock = []
    for name, one in ((words, data["of_gpu_clock"][key]) for key, words in names.items()):
        row = one["wattune"]
        floor = " / ".join(percent(share) for share in one["oracle"]["room"]["0.015"].values())
        regret = " / ".join(percent(row[f"regret_{key}"]) for key in ("mean", "p90", "worst"))
        over = f"{row['probes_over_a_case']:.2f} a case"
        by_gpu_clock.append((name, floor, regret, f"{row['probes']:.1f}", over, str(row["picks_over"])))
    head = "caps that some GPU clock keeps | fastest with 1.5% of room | wattune | probes | over by 1% | picks"
    return (
        f"{text}\nWhere there is room, {with_room['probes_over_a_case']:.2f} probes a case are above the cap by 1%.\n\n"
        f"{table(head, by_gpu_clock)}"
        f"\nWithin a training run of ten minutes the search takes {short['probes']:.1f} probes and "
        f"{percent(short['loss'])} of the time; of ten hours, {long['probes']:.1f} probes and "
        f"{percent(long['loss'])}.\n\nBatch sizes and power limits of Zeus' GPUs, {limits['cases']} cases: wattune "
        f"loses {percent(limits['wattune']['beyond_room'])} beyond the fastest point with room "
        f"({percent(limits['oracle']['regret_with_room'])}), and has no pick in "
        f"{limits['wattune']['without_a_pick']}.\n"
    )


def session() -> str:
    """Regret of a session, by what it knows of the samples to target."""
    data = read("session")
    known = {
        "recipe": "recipe kept",
        "curve": "sample estimates within 3%",
        "noise scale": "gradient noise scale",
        "prior": "past workloads only",
    }
    rows = []
    for kind, one in data["regret"].items():
        means = [percent(one[f"in_force {moment}"]["mean"]) for moment in ("60 s", "10 %")]
        below, above = f"{100 * one['in_force 10 %']['below 1 %']:.0f}%", one["runs_above_probing"]
        probing = f"{one['probing_s']:.0f} s"
        rows.append((known[kind], *means, below, probing, f"{above} of {one['runs']}", str(one["runs_above_training"])))
    return (
        f"{data['boards']} random simulated boards, {data['workloads']} workloads, {len(data['caps'])} caps each. "
        "Every training run would take an hour at its best point. Regret is how much longer the current point takes "
        "than the fastest one of which no single reading is above the cap. The cap is on the mean over a second, so a "
        f"point may be faster, and its regret negative: by {percent(data['regret']['recipe']['noise_price'])} at the "
        "cap itself if the recipe is kept.\n\n"
    ) + table(
        "known about samples to target | regret after 60 s | after 10% of the run | runs below 1% by then | time spent "
        "probing | runs with a mean above the cap while probing | while training",
        rows,
    )
