"""Command ``wattune guard``: run any program, in any language, under a cap."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattune import units
from wattune.cap_source import check_scale
from wattune.cli.options import Json, configured
from wattune.cli.output import Output, claim, emit_json, note
from wattune.errors import DeviceError, InputError, SafetyStop
from wattune.job.config import RunConfig

if TYPE_CHECKING:
    from wattune.devices import Device
    from wattune_agent.outcome import Report


@configured(
    "device",
    "meter",
    "cap",
    "max_temp",
    "sysfs_root",
    advanced=("cap_range", "cap_stale", "cap_window", "mode"),
    required=("device",),
)
def guard(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Program and its arguments.")],
    config: RunConfig,
    clock: Annotated[
        str | None,
        typer.Option("--clock", metavar="MHZ", help="Clock to pin, such as 612MHz (default: leave it as it is)."),
    ] = None,
    slices: Annotated[
        str,
        typer.Option(
            "--slices",
            metavar="auto|off",
            help="Let two neighbouring clocks share the cap's window, where doctor --try found the clock to be quick.",
        ),
    ] = "auto",
    stall: Annotated[
        str | None,
        typer.Option(
            "--stall", metavar="TIME", help="Tell when the power is near the power at rest for so long, such as 60s."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Also save the report as JSON (default: not saved)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run any program under a cap: pin the clock, meter, guard, restore.

    The clock follows the cap, which holds for the mean power over a second (--set cap_window=peak: for every reading).
    Under a cap that changes, the program is held (SIGSTOP) while the
    cap is 0 W or less than it draws at the lowest clock. The exit code is the program's own, or 4 if it was stopped
    because the cap was exceeded at the lowest clock. With --json, the program's output goes to stderr.

    \b
    Example:  wattune guard --device jetson --clock 612MHz --cap 10W -- python3 train.py
    """
    from wattune.cli.guarded_cap import GuardedCap
    from wattune.cli.guarded_device import Pinned
    from wattune.devices import open_device
    from wattune.devices.real_time import mapped
    from wattune_agent.guard_command import stdout_aside
    from wattune_agent.guarded import run_guarded
    from wattune_agent.outcome import GuardRequest, as_record, in_words
    from wattune_agent.slicing import MODES

    if slices not in MODES:
        raise InputError("--slices", value=slices, allowed=" or ".join(MODES))
    stall_s = None if stall is None else units.parse(stall, "s", name="--stall")
    moving, wanted_mhz = config.moving_cap, None if clock is None else units.parse(clock, "MHz", name="--clock")
    asked_cap = config.constant_cap if moving is None else moving.form
    destination = Output(None, as_json) if output is None else claim(output, "", as_json=as_json)
    board = open_device(str(config.device))
    report: Report | None = None
    try:
        try:
            if not board.executes_steps:
                raise InputError(
                    "this device cannot run programs", value=board.spec, hint="give the board that runs the program"
                )
            if asked_cap.side == "supply" and board.supply is None:
                for problem in board.problems:
                    if "supply.json" in problem:  # the supply is known, but its file cannot be read
                        raise InputError(problem)
            check_scale(moving or asked_cap, board.highest_w)
            limit = asked_cap.at_sensor(board.supply, board.sensor.window_s)
            caps = None if moving is None else GuardedCap(moving, board.supply, board.sensor.window_s)
            at_mhz = None if wanted_mhz is None else _listed(board, wanted_mhz)
            # A board's own controller also reads the present clock, and an agent has a guard of its own.
            controller = board.controller or Pinned(board)
            described = dict(controller.describe())
            request = GuardRequest(
                command,
                at_mhz,
                limit.limit_w,
                asked_cap.supply_w,
                limit.max_temp_c,
                limit.window_s,
                caps=None if moving is None else str(moving),
            )
            with mapped(), stdout_aside(as_json):
                report = run_guarded(
                    controller,
                    command,
                    clock_mhz=at_mhz,
                    cap_w=limit.limit_w,
                    window_s=limit.window_s,
                    max_temp_c=limit.max_temp_c,
                    caps=caps,
                    slices=slices == MODES[0],
                    stall_s=stall_s,
                    say=note,
                )
        finally:
            board.close()
    except DeviceError as error:
        if report is None:
            raise
        report = report.not_restored(str(error))
    text = in_words(report, request, described, board.kind)
    record = as_record(report, request, device=board.name, mode=board.mode, kind=board.kind)
    destination.save(record)
    failure = None
    if report.ended == "stopped for safety":
        reason = next(event["text"] for event in report.events if event["kind"] == "stopped for safety")
        failure = SafetyStop(f"stopped for safety: {reason}")
        if as_json:
            vars(failure)["record"] = record  # printed with the error: stdout holds one object
    elif as_json:
        emit_json(record)
    if not as_json:
        for line in text:
            note(line)  # stdout is the program's own
    if failure is not None:
        raise failure
    raise typer.Exit(report.exit_code)


def _listed(board: Device, wanted_mhz: float) -> float:
    """The device's own value of a clock, which may be given rounded. Raises: InputError."""
    from wattune_agent.settings import nearest

    clocks_mhz = next((knob.values for knob in board.knobs if knob.name == "clock_mhz"), ())
    if board.knobs and not clocks_mhz:
        raise InputError(
            "--clock", value=f"{wanted_mhz:g}", allowed="none: this device has a power limit instead of a clock"
        )
    meant_mhz = nearest(clocks_mhz, wanted_mhz)
    if meant_mhz not in clocks_mhz:
        clocks = ", ".join(f"{mhz:g}" for mhz in clocks_mhz)
        raise InputError(
            f"{board.name} has no such clock",
            value=f"{wanted_mhz:.12g} MHz",
            allowed=f"{clocks} MHz" if clocks else "none, it has no clock that can be set",
        )
    return meant_mhz
