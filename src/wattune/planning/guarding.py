"""The command that runs a program at the chosen point."""

from __future__ import annotations

import shlex

from wattune.records import Plan

STEPS = "STEPS"
"""What stands in the command for the number of steps, which is the user's to choose."""

NOT_PINNED = "`wattune guard` pins no power limit: set the one of this plan before, `nvidia-smi --power-limit` does"


def guard_command(plan: Plan) -> str | None:
    """``wattune guard`` with the plan's clock and cap around the program; None where the profile is of none.

    ``STEPS`` stands for the number of steps.
    """
    if plan.program is None:
        return None
    words = ["wattune", "guard", "--device", plan.program.device]
    if plan.clock_mhz is not None:
        words += ["--clock", f"{plan.clock_mhz:.9g}MHz"]
    if plan.supply_cap_w is not None:
        words += ["--cap", f"{plan.supply_cap_w:.9g}W@supply"]
    elif plan.cap_w is not None:
        words += ["--cap", f"{plan.cap_w:.9g}W"]
    program = [
        word.replace("{batch_size}", str(plan.batch_size)).replace("{steps}", STEPS)
        for word in shlex.split(plan.program.command)
    ]
    return shlex.join([*words, "--", *program])
