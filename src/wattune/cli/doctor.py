"""Command ``wattune doctor``: diagnose a device and suggest fixes."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattune.cli.options import Json, SysfsRoot, device_spec
from wattune.cli.output import emit, emit_json, note
from wattune.errors import DeviceError, InputError, OutputError, WattuneError

if TYPE_CHECKING:
    from wattune.doctor import Examination

_WIDTH = 110


def doctor(
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="DEVICE", help="A name from `wattune devices` (default: this board)."),
    ] = None,
    submit: Annotated[
        Path | None,
        typer.Option("--submit", metavar="FILE", help="Write the readings of this board to a record to share."),
    ] = None,
    calibrate: Annotated[
        str | None,
        typer.Option("--calibrate", metavar="METER", help="Calibrate against a meter at the supply: external:..."),
    ] = None,
    sysfs_root: SysfsRoot = None,
    as_json: Json = False,
) -> None:
    """Diagnose a device and suggest fixes.

    Nothing is changed on the board. --calibrate puts the board under several loads, compares its sensor with your meter
    at the supply, and saves the difference.

    \b
    Example:  wattune doctor
              wattune doctor --calibrate 'external:http://192.168.1.20/cm?cmnd=Status%208#field=StatusSNS.ENERGY.Power'
    """
    from wattune.doctor import default_device, examine

    root = "/" if sysfs_root is None else str(sysfs_root)
    if device is None and sysfs_root is not None and not (sysfs_root / "sys").is_dir():
        raise InputError("--sysfs-root", value=root, allowed="a folder with sys/... in it")
    spec = device_spec(device or default_device(root), sysfs_root)
    if calibrate is not None:
        if submit is not None:
            raise InputError("--calibrate and --submit cannot be combined")
        _calibrate(spec, calibrate, as_json=as_json)
        return
    if submit is not None and submit.exists():
        raise OutputError("the output file exists", value=str(submit), hint="choose another")
    result = examine(spec, say=note)
    if submit is not None:
        _submit(spec, result, submit)
    content = {
        "device": result.device,
        "findings": [vars(finding) for finding in result.findings],
        "figures": result.figures,
    }
    failure = _failure(result)
    if as_json:
        if failure is not None:
            vars(failure)["record"] = content  # printed with the error: stdout holds one object
        else:
            emit_json(content)
    else:
        emit(_text(result))
    if failure is not None:
        raise failure


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


def _submit(spec: str, result: Examination, path: Path) -> None:
    from wattune.doctor import board_tree
    from wattune.files import write_json
    from wattune_agent.capture import capture

    place = board_tree(spec)
    if place is None:
        raise InputError("--submit with this device", value=spec, allowed="jetson, cpu")
    record = capture(place[0], source="wattune doctor --submit")
    write_json(path, {**record, "figures": result.figures})
    note(f"the board record is in {path}; it has no serial number, address or host name; check it before sharing")


def _calibrate(spec: str, meter: str, *, as_json: bool) -> None:
    from dataclasses import asdict

    from wattune.devices import open_device
    from wattune.doctor import board_tree, calibrate, save_calibration
    from wattune_agent.tree import Tree

    if not meter.startswith("external:"):
        raise InputError("--calibrate", value=meter, allowed="external:COMMAND or external:URL")
    place = board_tree(spec)
    board = open_device(spec)
    try:
        other = open_device(meter)
        try:
            calibration = calibrate(board, other, note)
        finally:
            other.close()
        path = save_calibration(board, calibration, Tree() if place is None else place[0])
    finally:
        board.close()
    if as_json:
        emit_json({"device": board.name, **asdict(calibration), "kept": path})
        return
    for pair in calibration.pairs:
        emit(f"{pair.words:<16} module {pair.module_w:7.3f} W   supply {pair.supply_w:7.3f} W")
    emit(
        f"supply = (module + {calibration.other_w:.3f} W) / {calibration.efficiency:.3f}; error "
        f"{calibration.residual_w:.3f} W (root mean square), {calibration.largest_w:.3f} W at most"
    )
    note(f"saved in {path}: --cap 12W@supply now works with this board")
