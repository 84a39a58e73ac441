"""``wattune guard``: any program under a cap, in whatever language it is written."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattune.cli.options import (
    DeviceSpec,
    Json,
    MaxTemp,
    Mode,
    SysfsRoot,
    cap_limit,
    clock_mhz,
    device_spec,
    max_temp_c,
)
from wattune.cli.output import claim, emit_json, note
from wattune.errors import InputError, SafetyStop
from wattune.files import write_json

if TYPE_CHECKING:
    from wattune.devices import Device


def guard(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The program and its arguments.")],
    device: DeviceSpec,
    clock: Annotated[
        str | None, typer.Option("--clock", metavar="MHZ", help="Clock such as 612MHz. By default as it is.")
    ] = None,
    cap: Annotated[
        str, typer.Option("--cap", metavar="WATTS", help="Power limit such as 10W or 12W@supply, or none.")
    ] = "none",
    max_temp: MaxTemp = None,
    sysfs_root: SysfsRoot = None,
    mode: Mode = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Keep the report as JSON.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run any program: pin the clock, meter, guard, restore.

    A reading above the cap lowers the clock at once. The exit code is the program's own, or 4 where the cap could not
    be kept. With --json, what the program prints goes to stderr.

    \b
    Example:  wattune guard --device jetson --clock 612MHz --cap 10W -- python3 train.py
    """
    from wattune.cli.pinned import Pinned
    from wattune.devices import open_device
    from wattune.devices.local import BoardDevice, mapped
    from wattune.planning import module_cap
    from wattune_agent.guarded import run_guarded
    from wattune_agent.guarding import stdout_aside
    from wattune_agent.outcome import Asked, as_record, in_words

    limit, hottest_c, wanted_mhz = cap_limit(cap), max_temp_c(max_temp), clock_mhz(clock)
    if output is not None:
        claim(output, "", as_json=as_json)
    board = open_device(device_spec(device, sysfs_root, mode))
    try:
        if not board.executes_steps:
            raise InputError("no program runs on this device", value=device, hint="name the board that it runs on")
        if limit.side == "supply" and board.supply is None:
            for problem in board.problems:
                if "supply.json" in problem:  # it is known, but not readable
                    raise InputError(problem)
        cap_w = module_cap(limit.cap_w, limit.side, board.supply)
        at_mhz = None if wanted_mhz is None else _listed(board, wanted_mhz)
        # A board's own controller also tells the present clock, and an agent guards by itself.
        controller = board.controller if isinstance(board, BoardDevice) else Pinned(board)
        described = dict(controller.describe())
        asked = Asked(command, at_mhz, cap_w, limit.cap_w if limit.side == "supply" else None, hottest_c)
        with mapped(), stdout_aside(as_json):
            report = run_guarded(controller, command, clock_mhz=at_mhz, cap_w=cap_w, max_temp_c=hottest_c, say=note)
        text = in_words(report, asked, described, board.kind)
        kept = as_record(report, asked, device=board.name, mode=board.mode, kind=board.kind)
    finally:
        board.close()
    if output is not None:
        write_json(output, kept)
    failure = None
    if report.ended == "stopped for safety":
        told = next(event["text"] for event in report.events if event["kind"] == "stopped for safety")
        failure = SafetyStop(f"stopped for safety: {told}")
        if as_json:
            vars(failure)["record"] = kept  # printed with the error: stdout holds one object
    elif as_json:
        emit_json(kept)
    if not as_json:
        with suppress(OSError):  # nobody listens any more: the exit code is the program's all the same
            for line in text:
                note(line)  # stdout is the program's own
    if failure is not None:
        raise failure
    raise typer.Exit(report.exit_code)


def _listed(board: Device, wanted_mhz: float) -> float:
    """The clock that is meant; it may be given rounded. Raises: InputError."""
    from wattune_agent.settings import nearest

    if board.actuator == "power_limit_w":
        raise InputError("--clock", value=f"{wanted_mhz:g}", allowed="none: this device's actuator is a power limit")
    meant_mhz = nearest(board.settings, wanted_mhz)
    if meant_mhz not in board.settings:
        allowed = ", ".join(f"{mhz:g}" for mhz in board.settings)
        raise InputError(
            f"{board.name} has no such clock",
            value=f"{wanted_mhz:.12g} MHz",
            allowed=f"{allowed} MHz" if allowed else "none, it has no clock that can be set",
        )
    return meant_mhz
