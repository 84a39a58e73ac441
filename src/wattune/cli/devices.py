"""Command ``wattune devices``: list the devices to train on."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from wattune.cli.options import Json, configured
from wattune.cli.output import emit, emit_json, note
from wattune.job.config import RunConfig

if TYPE_CHECKING:
    from wattune.devices import KnownDevice

WIDTH = 80
"""Characters per line."""

NOTHING_HERE = (
    "this computer has nothing to train on under a cap: no clock or power sensor was found of a Jetson (devfreq, "
    "INA3221), of the CPU (cpufreq, RAPL) or of an NVIDIA card; for a meter of your own there is external:COMMAND, "
    "see docs/own-device.md"
)


@configured("sysfs_root")
def devices(config: RunConfig, as_json: Json = False) -> None:
    """List the devices of this computer and the simulated boards.

    With --sysfs-root, list only the boards whose files are in that folder.

    \b
    Example:  wattune devices
    """
    from wattune.devices import known_devices

    sysfs_root = config.sysfs_root
    rows = known_devices(None if sysfs_root is None else str(sysfs_root.absolute()))
    if as_json:
        emit_json([_fields(device) for device in rows])
        return
    if rows:
        emit(_listed(rows))
    else:
        emit(f"no supported board in {sysfs_root}")
    if sysfs_root is None and not any(device.kind == "measured" for device in rows):
        note(NOTHING_HERE)
    specs_by_problem: dict[str, list[str]] = {}
    for device in rows:
        for problem in device.problems:
            specs_by_problem.setdefault(problem, []).append(device.spec)
    for problem, specs in specs_by_problem.items():
        note(f"{', '.join(specs)}: {problem}")


def _fields(device: KnownDevice) -> dict[str, Any]:
    """Fields of a device in the JSON: its first knob as ``actuator`` and ``settings``, all in ``knobs`` if several."""
    from dataclasses import asdict

    fields = asdict(device)
    fields.pop("knobs")
    first = device.knobs[0] if device.knobs else None
    fields["actuator"] = None if first is None else first.name
    fields["settings"] = () if first is None else first.values
    fields["clocks_mhz"] = next((knob.values for knob in device.knobs if knob.name == "clock_mhz"), ())
    if len(device.knobs) > 1:
        fields["knobs"] = [{"name": knob.name, "values": knob.values} for knob in device.knobs]
    return fields


def _listed(devices: list[KnownDevice]) -> str:
    from wattune.reporting.text import table

    rows = [(d.spec, d.kind or "-", _power(d), _memory(d)) for d in devices]
    # Long texts are below the table, which would otherwise be wider than a terminal.
    about = [
        textwrap.fill(
            f"{d.spec}: {'; '.join(part for part in _about(d) if part)}",
            WIDTH,
            subsequent_indent="    ",
            break_on_hyphens=False,  # a name is copied whole
            break_long_words=False,
        )
        for d in devices
    ]
    return "\n".join((table(("device", "origin", "now", "memory"), rows), "", *about))


def _about(device: KnownDevice) -> tuple[str, ...]:
    name = device.name if device.name != device.spec else ""
    auto = "opened by --device auto" if device.auto else ""
    return name, _settings(device), device.mode, f"sensor {device.sensor}" if device.sensor else "", auto


def _settings(device: KnownDevice) -> str:
    from wattune.point import knob_text

    ranges = (
        knob_text(knob.name, knob.values[-1], f"{len(knob.values)} values from {knob.values[0]:g} to ")
        for knob in device.knobs
    )
    return "; ".join(ranges)


def _power(device: KnownDevice) -> str:
    return "-" if device.power_w is None else f"{device.power_w:.2f} W"


def _memory(device: KnownDevice) -> str:
    return "-" if device.memory_bytes is None else f"{device.memory_bytes / 2**30:.1f} GiB"
