"""``wattune guard``: any program under a cap, in whatever language it is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattune.cli.options import (
    DeviceSpec,
    Json,
    Limit,
    MaxTemp,
    Mode,
    SysfsRoot,
    cap_limit,
    clock_mhz,
    device_spec,
    max_temp_c,
)
from wattune.cli.output import emit_json, note
from wattune.errors import InputError, OutputError, SafetyStop
from wattune.files import write_json

if TYPE_CHECKING:
    from wattune.devices import Device
    from wattune_agent.guarded import Report


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

    limit, hottest_c, wanted_mhz = cap_limit(cap), max_temp_c(max_temp), clock_mhz(clock)
    if output is not None and output.exists():
        raise OutputError("the output is there already", value=str(output), hint="give another one by -o FILE")
    board = open_device(device_spec(device, sysfs_root, mode))
    try:
        if not board.executes_steps:
            raise InputError("no program runs on this device", value=device, hint="name the board that it runs on")
        cap_w = module_cap(limit.cap_w, limit.side, board.supply)
        at_mhz = None if wanted_mhz is None else _listed(board, wanted_mhz)
        # A board's own controller also tells the present clock, and an agent guards by itself.
        controller = board.controller if isinstance(board, BoardDevice) else Pinned(board)
        with mapped(), _stdout_aside() if as_json else nullcontext():
            report = run_guarded(controller, command, clock_mhz=at_mhz, cap_w=cap_w, max_temp_c=hottest_c, say=note)
        kept = {
            "record": "guard",
            "version": 1,
            "device": board.name,
            "mode": board.mode,
            "command": command,
            "clock_mhz": at_mhz,
            "cap_w": cap_w,
            "cap_side": limit.side,
            "supply_cap_w": limit.cap_w if limit.side == "supply" else None,
            "max_temp_c": hottest_c,
            **report._asdict(),
            "provenance": {"kind": board.kind},
        }
        text = _text(report, board, cap_w, limit, at_mhz)
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
        for line in text:
            note(line)  # stdout is the program's own
    if failure is not None:
        raise failure
    raise typer.Exit(report.exit_code)


def _text(report: Report, board: Device, cap_w: float | None, limit: Limit, at_mhz: float | None) -> list[str]:
    at = "the clock left to the board" if at_mhz is None else f"{at_mhz:g} MHz"
    origin = "" if board.kind == "measured" else f"  [{board.kind}]"
    lines = [
        f"{report.ended} after {report.time_s:.1f} s on {board.name}, {at}{origin}",
        f"{report.energy_j:.1f} J, mean {report.power_mean_w:.2f} W, highest reading {report.power_peak_w:.2f} W of "
        f"{report.readings} ({board.sensor.rail})",
    ]
    if cap_w is not None:
        window = f", each a mean over {board.sensor.window_s:.2g} s" if board.sensor.window_s else ""
        given = f" ({limit.cap_w:g} W at the supply)" if limit.side == "supply" else ""
        lines.append(f"above {cap_w:g} W{given} for {report.above_cap_s:.1f} s by the readings{window}")
    return lines


def _listed(board: Device, wanted_mhz: float) -> float:
    """The clock that is meant; it may be given rounded. Raises: InputError."""
    from wattune_agent.settings import nearest

    if board.actuator == "power_limit_w":
        raise InputError("--clock", value=f"{wanted_mhz:g}", allowed="none: this device's actuator is a power limit")
    meant_mhz = nearest(board.settings, wanted_mhz)
    board.check_setting(meant_mhz)
    return meant_mhz


@contextmanager
def _stdout_aside() -> Iterator[None]:
    """What the program prints to stdout goes to stderr: stdout holds one JSON object."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
