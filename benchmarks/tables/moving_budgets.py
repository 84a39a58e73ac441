"""Budgets that move: caps, and carbon or price."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables.results import percent, read


def moving_caps() -> str:
    """Progress under caps that change, and the time above them."""
    data = read("moving_caps")
    lines = [
        f"{data['days']} generated days of each kind, each planned with its own caps: mean (worst day). "
        "*Simulated* boards train ResNet-8, with samples to target assumed to grow as 1 + b/30; the recorded GPU "
        "trains ShuffleNetV2 by the epochs that it needed.",
        "",
        "| device, day | of the progress of the fastest point under each cap | times the best single point |",
        "|---|---|---|",
    ]
    for board in data["boards"]:
        for kind, row in board["of"].items():
            lines.append(
                f"| {board['device']}, {kind} | {percent(row['of_clairvoyant'])} "
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
    )
    lines = [
        f"A job of {data['job_h']:g} h, begun at {data['starts']} moments of a recorded month, on *simulated* boards: "
        "carbon relative to the fastest point at once, mean.",
        "",
        "| device | deadline over the job | " + " | ".join(names) + " | above perfect foresight |",
        "|---|---|" + "---|" * (len(names) + 1),
    ]
    for row in data["rows"]:
        cells = " | ".join(f"{row[name]:.2f}" for name in names)
        above = percent(row["above perfect foresight"])
        lines.append(f"| {row['device']} | {row['slack']:g} | {cells} | {above} |")
    return "\n".join(lines) + "\n"


PARTS: dict[str, Callable[[], str]] = {
    "moving_caps": moving_caps,
    "carbon": carbon,
}
