"""Sessions in the user's own loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


PARTS: dict[str, Callable[[], str]] = {
    "session": session,
    "session_overhead": session_overhead,
}
