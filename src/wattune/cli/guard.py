"""Command ``wattune guard``: run any program, in any language, under a cap."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wattune import units
from wattune.cap_source import check_scale
from wattune.cli.options import Json, configured, of_this_machine
from wattune.cli.output import Output, claim, note, tell
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
    "columns",
    "timezone",
    "sysfs_root",
    advanced=("cap_range", "cap_stale", "cap_window"),
    read=of_this_machine,
)
def guard(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="Program and its arguments.")],
    config: RunConfig,
    clock: Annotated[
        str | None,
        typer.Option("--clock", metavar="MHZ", help="Clock to pin, such as 612MHz (default: the fastest are found)."),
    ] = None,
    hold_clocks: Annotated[
        bool, typer.Option("--hold-clocks", help="Lower the first clock where the cap is exceeded, and no more.")
    ] = False,
    clocks: Annotated[
        Literal["all", "gpu"],
        typer.Option("--clocks", help="Clocks to choose: all that the board offers, or the first alone."),
    ] = "all",
    fresh: Annotated[bool, typer.Option("--fresh", help="Ignore what an earlier run of this command found.")] = False,
    expect: Annotated[
        str | None,
        typer.Option("--expect", metavar="TIME", help="Expected time of the run, such as 10min (default: the last's)."),
    ] = None,
    step_time: Annotated[
        str | None,
        typer.Option("--step-time", metavar="REGEX", help="Step times that the program prints, for one without torch."),
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
    """Run any program under a cap, training at the fastest clocks: meter, guard, restore.

    The cap holds for the mean power over a second (--set cap_window=peak: for every reading).
    A program that trains with torch is measured by its own optimizer steps while it runs, at one setting of the clocks
    after another, and then runs at the fastest one under the cap; what was found is remembered for this command.
    Other programs run at the highest clock under the cap.
    Under a cap that changes, the program is held (SIGSTOP) while the
    cap is 0 W or less than it draws at the lowest clock. The exit code is the program's own, or 4 if it was stopped
    because the cap was exceeded at the lowest clock. With --json, the program's output goes to stderr.

    \b
    Example:  wattune guard --cap 10W -- python3 train.py
    """
    from wattune.cli.choosing import Choosing
    from wattune.cli.guarded_cap import GuardedCap
    from wattune.cli.guarded_device import Pinned, described_as
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
    expect_s = None if expect is None else units.parse(expect, "s", name="--expect")
    destination = Output(None, as_json) if output is None else claim(output, "", as_json=as_json)
    board = open_device(str(config.device))
    report: Report | None = None
    chosen: Choosing | None = None
    try:
        try:
            check_scale(moving or asked_cap, board.highest_w)
            limit = asked_cap.at_sensor(board.supply, board.sensor.window_s)
            caps = None if moving is None else GuardedCap(moving, board.supply, board.sensor.window_s)
            for assumed in () if moving is None else moving.assumed:
                note(assumed)
            at_mhz = None if wanted_mhz is None else _listed(board, wanted_mhz)
            if not hold_clocks and moving is None and at_mhz is None and limit.limit_w is not None and board.offered:
                chosen = Choosing(board, limit, command, clocks, fresh=fresh, expect_s=expect_s, step_time=step_time)
            request = GuardRequest(
                command,
                at_mhz,
                limit.limit_w,
                asked_cap.supply_w,
                limit.max_temp_c,
                limit.window_s,
                caps=caps,
                slices=slices == MODES[0],
                stall_s=stall_s,
                choice=None if chosen is None else chosen.clocks,
            )
            if not board.executes_steps:
                if chosen is None or step_time is not None:
                    hint = (
                        "give a cap, and no --clock, --hold-clocks or --step-time; or the board that runs the program"
                    )
                    raise InputError("this device can only rehearse the choice of clocks", value=board.spec, hint=hint)
                described = described_as(board)
                with stdout_aside(as_json):
                    report = chosen.rehearse()
            else:
                # A board's own controller also reads the present clock, and an agent has a guard of its own.
                controller = board.controller or Pinned(board)
                described = dict(controller.describe())
                with mapped(), stdout_aside(as_json), chosen or nullcontext():
                    report = run_guarded(controller, say=note, **request._asdict())
            if chosen is not None:
                chosen.keep(report)
        finally:
            board.close()
    except DeviceError as error:
        if report is None:
            raise
        report = report.not_restored(str(error))
    choice = None if chosen is None else chosen.choice
    text = in_words(report, request, described, board.kind, choice.in_words() if choice is not None else [])
    record = as_record(report, request, device=board.name, mode=board.mode, kind=board.kind)
    if chosen is not None:
        record["choice"] = None if choice is None else choice.as_json()
    destination.save(record)
    failure = None
    if report.ended == "stopped for safety":
        reason = next(event["text"] for event in report.events if event["kind"] == "stopped for safety")
        failure = SafetyStop(f"stopped for safety: {reason}")
    if as_json:
        tell(record, "", as_json=True, failure=failure)
    for line in () if as_json else text:
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
