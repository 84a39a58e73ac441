"""Budgets that move: caps, carbon, sun and battery, and a service on the same board."""

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


PARTS: dict[str, Callable[[], str]] = {
    "moving_caps": moving_caps,
    "carbon": carbon,
    "sun": sun,
}
