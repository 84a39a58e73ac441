"""``wattune plan``: the batch size and the clock to train with, from a profile and an efficiency record."""

from __future__ import annotations

from wattune.cli.options import Cap, EfficiencyFile, File, Json, Margin, ProfileFile, cap_limit, margin_w
from wattune.cli.output import Output, claim


def plan(
    profile: ProfileFile,
    efficiency: EfficiencyFile,
    cap: Cap,
    margin: Margin = "0",
    output: File = None,
    as_json: Json = False,
) -> None:
    """Choose batch size and clock, from records.

    \b
    Example:  wattune plan profile.json efficiency.json --cap 4.5W --json
    """
    from wattune import stages
    from wattune.reporting import cap_table, summary

    limit, below = cap_limit(cap), margin_w(margin)
    # Planning takes a moment and is asked again and again for other caps: without -o it is only printed.
    to = Output(None, as_json) if output is None else claim(output, "plan.json", as_json=as_json)
    record = stages.plan(profile, efficiency, cap_w=limit.cap_w, cap_side=limit.side, margin_w=below)
    to.deliver(record, f"{summary(record)}\nover the range of caps, times the time of the pick\n{cap_table(record)}")
