"""Several devices: ranks of one job, and fleets."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables.results import read


def federated() -> str:
    """Time and energy until a fleet reaches the target accuracy, and wattune's gain over each other strategy."""
    data = read("federated")
    seeds = "one seed" if data["seeds"] == 1 else f"medians of {data['seeds']} seeds (and lowest and highest)"
    lines = [
        f"{data['clients']} *simulated* clients on {len(data['boards'])} kinds of boards until the test accuracy is "
        f"{data['target']:.0%}, {seeds}.",
        "",
        "| strategy | a round | rounds | seconds | joules | wattune is faster | wattune's energy over its own |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in data["time"]:
        gains = ["", ""]
        if row["policy"] != "wattune" and row["faster"] is not None:
            ends = [gain if data["seeds"] > 1 else gain[:1] for gain in (row["faster"], row["of_energy"])]
            gains = [" / ".join(f"{gain:.2f}" for gain in one) for one in ends]
        lines.append(
            f"| {row['policy']} | {row['round_s']:.2f} s | {row['rounds']:g} | {row['time_s']:.1f} | "
            f"{row['energy_j']:.0f} | {gains[0]} | {gains[1]} |"
        )
    return "\n".join(lines) + "\n"


def ranks() -> str:
    """Several devices under one budget: the division of the watts, and killed ranks."""
    data, killed = read("ranks_division"), read("ranks_killed")
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
    lines += [
        "",
        "One rank was killed (SIGKILL), rank 0 or another, on boards that are folders with the files of real ones:",
        "",
        "| job | kills | files restored: kills, seconds (longest) | others ended and named it: the same |",
        "|---|---|---|---|",
    ]
    jobs = {"session": "sessions of 3 ranks", "script": "a script of 2 ranks under `wattune guard -- torchrun`"}
    for way, words in jobs.items():
        result = killed["summary"][way]
        lines.append(
            f"| {words} | {result['moments']} "
            f"| {result['restored']}, {result['restored_s_median']:.1f} ({result['restored_s_longest']:.1f}) "
            f"| {result['ended_clearly']}, {result['ended_s_median']:.1f} ({result['ended_s_longest']:.1f}) |"
        )
    return "\n".join(lines) + "\n"


PARTS: dict[str, Callable[[], str]] = {"ranks": ranks, "federated": federated}
