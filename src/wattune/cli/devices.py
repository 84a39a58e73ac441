"""Command ``wattune devices``: list the devices to train on."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from wattune.cli.options import Json, SysfsRoot
from wattune.cli.output import emit, emit_json, note

if TYPE_CHECKING:
    from wattune.devices import KnownDevice

WIDTH = 110
"""Characters per line."""


def devices(sysfs_root: SysfsRoot = None, as_json: Json = False) -> None:
    """List the devices of this computer and the simulated boards.

    With --sysfs-root, list only the boards whose files are in that folder.

    \b
    Example:  wattune devices
    """
    from dataclasses import asdict

    from wattune.devices import known_devices

    known = known_devices(None if sysfs_root is None else str(sysfs_root.absolute()))
    if as_json:
        emit_json([asdict(device) for device in known])
        return
    if known:
        emit(_listed(known))
    else:
        emit(f"no supported board in {sysfs_root}")
    concerned: dict[str, list[str]] = {}
    for device in known:
        for problem in device.problems:
            concerned.setdefault(problem, []).append(device.spec)
    for problem, specs in concerned.items():
        note(f"{', '.join(specs)}: {problem}")


def _listed(known: list[KnownDevice]) -> str:
    from wattune.reporting.text import table

    rows = [(d.spec, d.kind or "-", _settings(d), _power(d), _memory(d)) for d in known]
    # Long texts are below the table, which would otherwise be wider than a terminal.
    about = [
        textwrap.fill(f"{d.spec}: {'; '.join(part for part in _about(d) if part)}", WIDTH, subsequent_indent="    ")
        for d in known
    ]
    return "\n".join((table(("device", "origin", "settings", "now", "memory"), rows), "", *about))


def _about(device: KnownDevice) -> tuple[str, ...]:
    name = device.name if device.name != device.spec else ""
    auto = "opened by --device auto" if device.auto else ""
    return name, device.mode, f"sensor {device.sensor}" if device.sensor else "", auto


def _settings(device: KnownDevice) -> str:
    if not device.settings:
        return "-"
    unit = "W" if device.actuator == "power_limit_w" else "MHz"
    return f"{len(device.settings)}: {device.settings[0]:g} to {device.settings[-1]:g} {unit}"


def _power(device: KnownDevice) -> str:
    return "-" if device.power_w is None else f"{device.power_w:.2f} W"


def _memory(device: KnownDevice) -> str:
    return "-" if device.memory_bytes is None else f"{device.memory_bytes / 2**30:.1f} GiB"
