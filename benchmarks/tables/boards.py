"""Boards: what reading and setting them costs, recorded ones, and how the simulated ones were calibrated."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from benchmarks.tables.results import percent, read


def boards() -> str:
    """Overhead and response times on a board, and the share of a core that its readings take."""
    data = read("boards")
    machine, pinning, cost = data["machine"], data["pinning"], data["cost"]
    files = data["boards"]
    slowest = max(files, key=lambda board: board["device"]["median_s"])
    return (
        f"On {machine['cores']} cores of an {machine['cpu']}, Python {machine['python']}, with files in place of a "
        "board's, beside other work: readings in CPU time, median (worst), the rest as medians by the clock. "
        "The time that the kernel's driver needs to query the chip is not included.\n\n"
        "| | aim | measured |\n|---|---|---|\n"
        f"| one reading, slowest of {len(files)} boards ({slowest['board']}) | 0.2 ms "
        f"| {worst_ms(slowest['device'])} |\n"
        f"| one reading, worst of {data['readings']} on each of these boards | "
        f"| {max(board['device']['max_s'] for board in files) * 1e3:.2f} ms |\n"
        f"| extra time, once a second, to check temperatures and counters, slowest board | "
        f"| {worst_ms(max((board['conditions'] for board in files), key=lambda costs: costs['median_s']))} |\n"
        f"| one reading through an agent, round trip | | {data['agent']['read']['median_s'] * 1e3:.2f} ms |\n"
        f"| taking control: lock, snapshot on disk, limits, and a clock that settles after 50 ms | "
        f"| {pinning['first']['median_s'] * 1e3:.0f} ms |\n"
        f"| restoring the board | | {pinning['restore']['median_s'] * 1e3:.0f} ms |\n"
        f"\nTen readings a second, with {cost['read_s'] * 1e3:g} ms for each file: what one register of an INA3221 "
        "takes on an AGX Orin, and more than a temperature does.\n\n"
        "| board | files read per second | share of one core | longest reading |\n|---|---|---|---|\n"
        + "".join(
            f"| {board['board']} | {board['reads_per_s']:.0f} | {board['share']:.1%} "
            f"| {board['longest_s'] * 1e3:.0f} ms |\n"
            for board in cost["boards"]
        )
    )


def guard() -> str:
    """The guard's rule beside others, and what only a run of it shows."""
    data = read("guard")
    head = "| rule | more than 2% above the cap | work over the best fixed clock | changes in 5 min |"
    lines = [head, "|---|---|---|---|"]
    for name, rule in {**data["rules"], "the former rule": data["former"]}.items():
        above, work, changes = (rule["all"][key] for key in ("above_percent", "work", "changes"))
        lines.append(f"| {name} | {above:.2f}% of the time | {work:.3f} | {changes:.0f} |")
    day, cpu, rows, kills = data["day"], data["cpu"], data["training"], data["kills"]
    gains, above_s = [row["over_fixed"] for row in rows], sum(row["above_s"] for row in rows)
    return "\n".join(lines) + (
        "\n\nA day with an excursion each half hour: the mean clock of the last hour is "
        f"{day['slices on']['last_over_first']:.3f} of the first hour's, {day['slices off']['last_over_first']:.3f} "
        f"without slices. Training on three simulated boards under a guard that slices, {len(rows)} cases: "
        f"{statistics.fmean(gains):.3f} times the best fixed clock by exact power ({min(gains):.3f} to "
        f"{max(gains):.3f}), {above_s:.1f} s more than 2% above the cap. With {cpu['readings_per_s']:.0f} readings a "
        f"second and slices, an agent takes {cpu['agent_percent']:.1f}% of a core and its guard "
        f"{cpu['guard_percent']:.1f}%. Of {kills['killed']:,} kills, {kills['changed']:,} left a board changed, and "
        f"{kills['changed_after_restore']} after `restore`.\n"
    )


def agx_orin() -> str:
    """Energy over the GPU's clock of the simulated AGX Orin beside the recorded one."""
    data = read("agx_orin")
    lines = [
        "| fine-tuning DeBERTa-v2-xlarge | least energy at (recorded) | highest clock over least (recorded) | RMS "
        "error of the shape |",
        "|---|---|---|---|",
    ]
    for name, one in data["shapes"].items():
        kind = "fitted" if name == data["fitted"] else "predicted"
        lines.append(
            f"| {name}, {kind} | {one['least_mhz']:g} MHz ({one['recorded_least_mhz']:g}) | "
            f"{one['highest_over_least']:.2f} ({one['recorded_highest_over_least']:.2f}) | {percent(one['rms'])} |"
        )
    return "\n".join(lines) + "\n"


def worst_ms(figures: dict[str, float], digits: int = 2) -> str:
    """A median with the worst, in milliseconds."""
    return f"{figures['median_s'] * 1e3:.{digits}f} ms ({figures['max_s'] * 1e3:.{digits}f})"


def calibration_fits() -> str:
    """Fits of the simulated boards to the published times."""
    from benchmarks.paper.calibration import NAME, markdown

    return markdown(read(NAME))


def jetsons() -> str:
    """Strategies of profiling on the recorded TX2, with three clocks to set."""
    data = read("jetsons")
    oracle = data["oracle"]
    lines = [
        f"{data['cases']} cases: two workloads, {data['caps']} caps from the least power of all settings on, "
        f"{data['seeds']} seeds (other strategies: one). In {oracle['without_gpu_clock_alone']} of them no GPU clock "
        "alone stays below the cap; in the others, choosing all three clocks exactly right would be "
        f"{oracle['over_gpu_clock_alone']:.2f} times as fast. The fastest setting that leaves 1.5% of the cap unused "
        f"has a regret of {percent(oracle['regret_with_room'])}; in {oracle['without_room']} cases there is none. "
        f"In the others, wattune loses {percent(data['strategies']['wattune']['beyond_room'])} beyond that.",
        "",
        "| strategy | probes | regret, mean | in 9 of 10 cases at most | worst | without a pick "
        "| probes above the cap by more than 1% | picks above it by more than 0.5% "
        "| more regret than wattune on the same caps and seed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in data["strategies"].items():
        lines.append(
            f"| {name} | {row['probes']:.1f} | {percent(row['regret_mean'])} | {percent(row['regret_p90'])} "
            f"| {percent(row['regret_worst'])} | {row['without_a_pick']} | {row['probes_over_a_case']:.2f} a case, by "
            f"{percent(row['worst_over'])} at most | {row['picks_over']} "
            f"| {percent(row['more_than_ours'])} ± {percent(row['more_than_ours_se'])} |"
        )
    with_room, limits = data["strategies"]["wattune"]["with_room"], data["power_limits"]
    lines += ["", f"Where there is room, {with_room['probes_over_a_case']:.2f} probes a case are above the cap by 1%."]
    lines += [
        "",
        "| caps that some GPU clock keeps | fastest with 1.5% of room | wattune | probes | over by 1% | picks |",
    ]
    lines.append("|---|---|---|---|---|---|")
    names = {"judged": "two workloads", "all": "three, with the one tuned on"}
    for name, one in ((words, data["of_gpu_clock"][key]) for key, words in names.items()):
        row = one["strategies"]["wattune"]
        floor = " / ".join(percent(share) for share in one["oracle"]["room"]["0.015"].values())
        ours = " / ".join(percent(row[f"regret_{key}"]) for key in ("mean", "p90", "worst"))
        lines.append(
            f"| {name} | {floor} | {ours} | {row['probes']:.1f} | {row['probes_over_a_case']:.2f} a case "
            f"| {row['picks_over']} |"
        )
    short, long = data["training"].values()
    lines += [
        "",
        f"Within a training run of ten minutes the search takes {short['probes']:.1f} probes and "
        f"{percent(short['loss'])} of the time; of ten hours, {long['probes']:.1f} probes and {percent(long['loss'])}.",
        "",
        f"Batch sizes and power limits of Zeus' GPUs, {limits['cases']} cases: wattune loses "
        f"{percent(limits['strategies']['wattune']['beyond_room'])} beyond the fastest point with room "
        f"({percent(limits['oracle']['regret_with_room'])}), and has no pick in "
        f"{limits['strategies']['wattune']['without_a_pick']}.",
    ]
    return "\n".join(lines) + "\n"


def tx2_nx() -> str:
    """The TX2 NX, derived from the TX2."""
    from benchmarks.tx2_figures import markdown_nx

    return markdown_nx(read("tx2_calibration")["tx2_nx"])


def tx2_calibration() -> str:
    """Errors of the simulated TX2 beside a recorded one."""
    from benchmarks.tx2_figures import markdown

    return markdown(read("tx2_calibration"))


PARTS: dict[str, Callable[[], str]] = {
    "boards": boards,
    "guard": guard,
    "agx_orin": agx_orin,
    "calibration_fits": calibration_fits,
    "jetsons": jetsons,
    "tx2_calibration": tx2_calibration,
    "tx2_nx": tx2_nx,
}
