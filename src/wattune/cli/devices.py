"""``wattune devices``: what there is to train on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wattune.cli.options import Json
from wattune.cli.output import emit, emit_json, note

if TYPE_CHECKING:
    from wattune.devices import KnownDevice


def devices(as_json: Json = False) -> None:
    """List the devices there are by name.

    \b
    Example:  wattune devices
    """
    from dataclasses import asdict

    from wattune.devices import known_devices
    from wattune.reporting.text import table

    known = known_devices()
    if as_json:
        emit_json([asdict(device) for device in known])
        return
    rows = [(d.spec, d.kind or "-", _settings(d), _memory(d), f"  {d.mode}; sensor {d.sensor}") for d in known]
    emit(table(("device", "origin", "settings", "memory"), rows))
    for device in known:
        for problem in device.problems:
            note(f"{device.spec}: {problem}")


def _settings(device: KnownDevice) -> str:
    if not device.settings:
        return "-"
    unit = "W" if device.actuator == "power_limit_w" else "MHz"
    return f"{len(device.settings)}: {device.settings[0]:g} to {device.settings[-1]:g} {unit}"


def _memory(device: KnownDevice) -> str:
    return "-" if device.memory_bytes is None else f"{device.memory_bytes / 2**30:.1f} GiB"
