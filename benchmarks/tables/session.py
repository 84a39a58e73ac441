"""Sessions in the user's own loop."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables.results import percent, read

KNOWN = {
    "recipe": "recipe kept",
    "curve": "sample estimates within 3%",
    "noise scale": "gradient noise scale",
    "prior": "past workloads only",
}


def session() -> str:
    """Regret of a session, by what it knows of the samples to target, beside another strategy."""
    data = read("session")
    lines = [
        f"{data['boards']} random simulated boards, {data['workloads']} workloads, {len(data['caps'])} caps each. "
        "Every training run would take an hour at its best point. Regret is how much longer the current point takes "
        "than the fastest one of which no single reading is above the cap. The cap is on the mean over a second, so a "
        "point may be faster, and its regret negative: by "
        f"{percent(data['regret']['recipe']['guided']['noise_price'])} at the cap itself if the recipe is kept.",
        "",
        "| known about samples to target | strategy | regret after 60 s | after 10% of the run "
        "| runs below 1% by then | time spent probing | runs with a mean above the cap while probing "
        "| while training |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, ways in data["regret"].items():
        for way, figures in ways.items():
            name = "wattune" if way == "guided" else way
            means = " | ".join(percent(figures[f"in_force {moment}"]["mean"]) for moment in ("60 s", "10 %"))
            lines.append(
                f"| {KNOWN[kind]} | {name} | {means} | {100 * figures['in_force 10 %']['below 1 %']:.0f}% "
                f"| {figures['probing_s']:.0f} s | {figures['runs_above_probing']} of {figures['runs']} "
                f"| {figures['runs_above_training']} |"
            )
    return "\n".join(lines) + "\n"


def session_overhead() -> str:
    """CPU time that a session adds to a step of your own loop, and its share of a step."""
    data = read("session_overhead")
    low, high = (1e3 * bound for bound in data["band_s"])
    return (
        f"A session adds {1e3 * data['extra_s']:.2f} ms of CPU time to a step of your own loop (95% band {low:.2f} to "
        f"{high:.2f}), and the thread that reads the sensor takes {data['sampling_thread']:.2%} of one core. Together "
        f"they are 1% of a step of {1e3 * data['least_step_s']:.0f} ms.\n"
    )


PARTS: dict[str, Callable[[], str]] = {
    "session": session,
    "session_overhead": session_overhead,
}
