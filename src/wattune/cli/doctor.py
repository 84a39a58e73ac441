"""Command ``wattune doctor``: diagnose a device and suggest fixes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wattune.cli.options import Json, configured
from wattune.cli.output import Output, claim, confirmed, note, tell
from wattune.errors import DeviceError, InputError, WattuneError
from wattune.job.config import RunConfig
from wattune.version import __version__

if TYPE_CHECKING:
    from wattune.doctor import Examination, TriedSetting
    from wattune_agent.tree import Tree

_WIDTH = 110


@configured("device", "sysfs_root")
def doctor(
    config: RunConfig,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="A program: look at its interpreter instead.")
    ] = None,
    submit: Annotated[
        Path | None,
        typer.Option("--submit", metavar="FILE", help="Write the readings of this board to a record to share."),
    ] = None,
    try_settings: Annotated[
        bool,
        typer.Option(
            "--try",
            help="Pin the lowest, a middle and the highest setting, 2 s each; the record is board.json or --submit's.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --try: do not ask first.")] = False,
    as_json: Json = False,
) -> None:
    """Diagnose a device and suggest fixes.

    Nothing is changed on the board, except by --try, which asks first, pins three settings, reads back clock and power,
    and restores the board. With a command, its Python is examined in place of the device: version, torch, GPU, numpy,
    and whether `wattune guard` sees its steps.

    \b
    Example:  wattune doctor
              wattune doctor -- python3 train.py
              wattune doctor --try
    """
    from wattune.doctor import default_device, examine

    if command:
        if try_settings or submit is not None:
            raise InputError("a command", allowed="without --try and --submit")
        _told(_program(command), as_json=as_json)
        return
    root = "/" if config.sysfs_root is None else str(config.sysfs_root)
    device = config.device or default_device(root)
    spec = str(RunConfig.read({"device": device, "sysfs_root": config.sysfs_root}).device)
    if yes and not try_settings:
        raise InputError("--yes", allowed="only with --try")
    if try_settings:
        _try(spec, claim(submit, "board.json", as_json=as_json, option="--submit"), is_agreed=yes)
        return
    destination = Output(None, as_json) if submit is None else claim(submit, "", as_json=as_json, option="--submit")
    result = examine(spec, say=note)
    if submit is not None:
        _submit(spec, result, destination)
    _told(result, as_json=as_json)


def _told(result: Examination, *, as_json: bool) -> None:
    """Print the findings. Raises: DeviceError if one of them prevents training."""
    content = {
        "device": result.device,
        "findings": [vars(finding) for finding in result.findings],
    }
    tell(content, _text(result), as_json=as_json, failure=_failure(result))


def _program(command: Sequence[str]) -> Examination:
    """Examine the interpreter of a program. Raises: InputError."""
    from wattune.doctor import Examination, Finding
    from wattune.doctor.board_checks import check_torch
    from wattune.doctor.interpreter import examine

    found = examine(command)
    name = " ".join(command)
    if found is None:
        text = f"{command[0]} does not start Python: the guard holds the cap, and chooses clocks by --step-time alone"
        return Examination(name, (Finding("interpreter", "warn", text),))
    if found.python == "?":
        return Examination(name, (Finding("interpreter", "fail", f"{found.path} does not work: {found.failure}"),))
    findings = [Finding("interpreter", "ok", f"Python {found.python}: {found.path}")]
    torch = check_torch(found, needs_gpu=found.cuda is not None)
    findings.append(torch if found.torch or torch.state == "ok" else replace(torch, state="warn"))
    if found.misfit:
        fix = "install the numpy that this torch was built for: for torch before 2.3, numpy<2"
        findings.append(Finding("numpy", "fail", f"numpy {found.numpy} does not fit torch: {found.misfit}", fix))
    if found.sees_steps:
        findings.append(Finding("steps", "ok", "wattune guard sees the steps of its optimizers"))
    elif found.torch is not None:
        text = "the steps of its optimizers are not seen, so that wattune guard holds the cap alone"
        fix = "start Python without -I, -E and -S, and let sitecustomize.py be found on PYTHONPATH; else --step-time"
        findings.append(Finding("steps", "warn", text, fix))
    return Examination(name, tuple(findings))


def _text(result: Examination) -> str:
    lines = []
    for finding in result.findings:
        head = f"{finding.state:<5} {finding.name:<12} "
        lines += textwrap.wrap(finding.text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
        if finding.fix:
            lines += textwrap.wrap(
                f"-> {finding.fix}", _WIDTH, initial_indent=" " * len(head), subsequent_indent=" " * (len(head) + 3)
            )
    return "\n".join(lines)


def _failure(result: Examination) -> WattuneError | None:
    names = list(dict.fromkeys(finding.name for finding in result.failed))
    return DeviceError(f"{result.device}: not ready to train on: {', '.join(names)}") if names else None


def _submit(spec: str, result: Examination, destination: Output) -> None:
    from wattune.doctor import board_tree

    place = board_tree(spec)
    if place is None:
        raise InputError("--submit with this device", value=spec, allowed="jetson, cpu")
    _write_board(destination, place[0], result.device, "wattune doctor --submit")


def _write_board(destination: Output, tree: Tree | None, name: str, source: str, **fields: Any) -> None:
    """Write a board record; without files if the device is not read from any."""
    from wattune.doctor.capture import capture

    if tree is None:
        record = {"record": "board", "version": 1, "name": name, "source": [source], "files": {}}
    else:
        record = capture(tree, source=source)
    destination.save({**record, **fields})
    note("the board record has no serial number, address or host name; check it before sharing")


def _try(spec: str, destination: Output, *, is_agreed: bool) -> None:
    from wattune.devices import open_device
    from wattune.doctor import TRY_S, board_tree, device_tree, settings_to_try, try_settings, try_switch

    device = open_device(spec)
    try:
        settings = "; ".join(map(str, settings_to_try(device)))
        question = (
            f"{device.name} will be set to {settings}, for {TRY_S:g} s each, the clock of a board will be switched "
            "between its two highest, and all will be restored."
        )
        if not is_agreed and not confirmed(question):
            note("nothing was changed")
            return
        rows = try_settings(device, note)
        if switch := "" if any(row.failure for row in rows) else try_switch(device, note):
            note(switch)
        name, kind, tree = device.name, device.kind, device_tree(device, board_tree(spec))
    finally:
        device.close()
    fields = [row.fields() for row in rows]
    origin = {"kind": kind, "software": f"wattune {__version__}"}
    if destination.path is not None:
        _write_board(destination, tree, name, "wattune doctor --try", tried=fields, provenance=origin)
    content = {"device": name, "tried": fields, "provenance": origin}
    settings_by_failure: dict[str, list[str]] = {}
    for row in rows:
        if row.failure:
            settings_by_failure.setdefault(row.failure, []).append(str(row.knobs))
    failures = [f"{', '.join(failed)}: {reason}" for reason, failed in settings_by_failure.items()]
    failure = DeviceError("; ".join(failures)) if failures else None
    text = f"{name}  [{kind}]\n{_tried_table(rows)}\nrestored: the device is as it was found"
    tell(content, text, as_json=destination.as_json, failure=failure)


def _tried_table(rows: Sequence[TriedSetting]) -> str:
    from wattune.reporting import phrases
    from wattune.reporting.text import table

    lines = []
    for row in rows:
        remarks = [f"throttled by {', '.join(row.throttled)}"] if row.throttled else []
        remarks += [f"held by {', '.join(row.notices)}"] if row.notices else []
        remarks += ["failed, see below"] if row.failure else []
        if row.is_suspended:
            remarks.append("the processor is suspended; try again under load")
        elif not row.is_pinned:
            remarks.append("the clock is not the pinned one")
        clock = "-" if row.clock_mhz is None else f"{row.clock_mhz:g} MHz"
        hottest = "-" if row.temperature_c is None else f"{row.temperature_c:.1f} °C"
        remark = ", ".join((*remarks, *row.events)) or "ok"
        power = (phrases.watts(row.power_mean_w), phrases.watts(row.power_peak_w))
        lines.append((str(row.knobs), clock, *power, hottest, remark))
    return table(("pinned", "clock read", "mean power", "highest", "hottest zone"), lines)
