"""Shares of the best division's pace that simpler divisions reach, by the boards' exact figures alone.

For the boards and caps of ``division``, without training or searching. Compared with the fastest of all combinations of
the boards' settings below the cap:

- "equal times": each board at the lowest setting that is as fast as the slowest;
- "same clock": all boards at one clock;
- "least power": each board at the setting at which it draws least at that pace, also if it then waits for longer.

A simulated board that waits draws its power at rest.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.groups import ALIKE, Member, best, members_of
from benchmarks.ranks.division import BOARD, SPREAD, boards_of, cap_of, cases, step_work_of
from benchmarks.timing import keep
from wattune.devices.group.balance import SLACK
from wattune.point import Knobs

Choice = Callable[[Member, float], float]
"""Mean power of a member at the setting that is chosen for it in a step of this many seconds."""


def main() -> None:
    """Compute, and store the results."""
    work, rows = step_work_of(), []
    for case in cases():
        cap_w, members = cap_of(case, work), members_of(boards_of(case), work)
        most = best(members, cap_w, spins=False)
        assert most is not None
        paces = {
            "equal times": _fastest(members, cap_w, _lowest_w),
            "same clock": _same_clock(members, cap_w),
            "least power": _fastest(members, cap_w, _least_w),
        }
        rows.append({**case._asdict(), "cap_w": cap_w, "of_best": {name: pace / most for name, pace in paces.items()}})
    keep("ranks_losses", {"board": BOARD, "spread": SPREAD, "summary": summary(rows), "cases": rows})


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Means by the kind and number of boards."""
    groups = dict.fromkeys((row["kind"], row["ranks"]) for row in rows)
    return {
        f"{ranks} {kind}": {
            name: statistics.fmean(row["of_best"][name] for row in rows if (row["kind"], row["ranks"]) == (kind, ranks))
            for name in rows[0]["of_best"]
        }
        for kind, ranks in groups
    }


def _fastest(members: Sequence[Member], cap_w: float, power_w: Choice) -> float:
    """Steps a second at the fastest setting of any one member that the others follow below the cap."""
    top_s = max(min(step.step_s for step in member.steps.values()) for member in members)
    paces = [0.0]
    for leader in members:
        for knobs, step in leader.steps.items():
            step_s = max(step.step_s, top_s)
            others_w = sum(power_w(member, step_s) for member in members if member is not leader)
            if leader.mean_w(knobs, step_s, spins=False) + others_w <= cap_w:
                paces.append(1 / step_s)
    return max(paces)


def _lowest_w(member: Member, step_s: float) -> float:
    in_time = [knobs for knobs, step in member.steps.items() if step.step_s <= (1 + SLACK) * step_s]
    lowest: Knobs = min(in_time, key=lambda knobs: member.steps[knobs].power_mean_w)
    return member.mean_w(lowest, max(step_s, member.steps[lowest].step_s), spins=False)


def _least_w(member: Member, step_s: float) -> float:
    in_time = [knobs for knobs, step in member.steps.items() if step.step_s <= ALIKE * step_s]
    return min(member.mean_w(knobs, step_s, spins=False) for knobs in in_time)


def _same_clock(members: Sequence[Member], cap_w: float) -> float:
    paces = [0.0]
    for knobs in members[0].steps:
        step_s = max(member.steps[knobs].step_s for member in members)
        if sum(member.mean_w(knobs, step_s, spins=False) for member in members) <= cap_w:
            paces.append(1 / step_s)
    return max(paces)
