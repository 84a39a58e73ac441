"""Several devices: ranks of one job, and fleets."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from benchmarks.tables.results import percent, read


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
    lines += ["", ranks_losses(), "", ranks_shares()]
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


def ranks_losses() -> str:
    """What simpler divisions reach of the best one by exact figures."""
    exact = read("ranks_losses")["summary"]
    sizes = sorted({int(name.split()[0]) for name in exact})
    parts = []
    for kind, words in (("spread", "of one kind"), ("mixed", "of mixed kinds")):
        shares = [f"{exact[f'{ranks} {kind}']['equal times']:.0%}" for ranks in sizes]
        parts.append(f"{', '.join(shares[:-1])} and {shares[-1]} for boards {words}")
    least = min(row["least power"] for row in exact.values())
    *smaller, largest = sizes
    return (
        f"By the boards' exact figures, without a search, equal times reach {'; '.join(parts)} "
        f"({', '.join(map(str, smaller))} and {largest} boards); each board at the setting at which it draws least at "
        f"that pace, waiting included, {least:.0%}. The sessions above looked for that setting, which they no longer "
        "do: equal times are what they give the boards now."
    )


def ranks_shares() -> str:
    """What unequal local batches added to the division of the watts."""
    exact, tried = read("ranks_shares")["summary"], read("ranks_shares_sessions")
    *smaller, largest = exact
    parts, sessions = [], []
    for fast in ("2", "4"):
        means = [f"{gains[fast][1]:.2f}" for gains in exact.values()]
        parts.append(f"{', '.join(means[:-1])} and {means[-1]} times the steps with {fast} times the samples")
        own = [case for case in tried["cases"] if f"{case['fast']:g}" == fast]
        gains = ", ".join(f"{case['over_alike']:.2f}" for case in sorted(own, key=lambda case: case["share"]))
        above_s, time_s = sum(case["above_cap_s"] for case in own), sum(case["time_s"] for case in own)
        sessions.append(f"{gains} times the steps with {fast} times ({above_s:.3g} of {time_s:.0f} s above the cap)")
    return (
        "Unequal local batches were tried on the mixed boards, with the same global batch, under the same budget: the "
        "fast boards get more of each step's samples than the slow ones, and the watts are divided as well. By exact "
        f"figures, the best division of the watts then makes {'; '.join(parts)} ({', '.join(smaller)} and {largest} "
        f"boards; means over three caps). *Simulated* sessions of two processes, from the lowest cap up: "
        f"{'; '.join(sessions)}."
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


PARTS: dict[str, Callable[[], str]] = {
    "ranks": ranks,
    "federated": federated,
    "federated_energy": federated_energy,
}
