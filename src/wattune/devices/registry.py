"""Devices by name: from the text behind ``--device`` to a device."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from wattune.devices.base import Device, Knob, Sensor
from wattune.devices.simulator.board_file import board_names, builtin_board
from wattune.errors import DeviceError, InputError, UnknownName, WattuneError
from wattune.records import Kind

OPENERS = {
    "agent": "wattune.devices.agent:open_agent",
    "auto": "wattune.devices.auto:open_auto",
    "cpu": "wattune.devices.agent:open_cpu",
    "external": "wattune.devices.agent:open_external",
    "jetson": "wattune.devices.agent:open_jetson",
    "nvidia": "wattune.devices.agent:open_nvidia",
    "replay": "wattune.devices.replay:open_replay",
    "sim": "wattune.devices.simulator.simulated:open_simulated",
}
"""Name of a device -> a function of the text behind the name and a seed. Third parties add theirs in the entry-point
group ``wattune.devices``."""

ALONE = frozenset({"agent", "auto", "cpu", "external", "jetson", "nvidia"})
"""Names that need nothing behind them, or whose opener says what it needs."""

GROUP = "wattune.devices"

NO_SENSOR = "none"

Opener = Callable[..., Device]


@dataclass(frozen=True)
class KnownDevice:
    """A device that can be named: the text that names it, its properties, and the problems that it has here.

    ``power_w`` is a present reading, None if there is none.
    """

    spec: str
    backend: str
    name: str
    mode: str
    kind: Kind | None
    knobs: tuple[Knob, ...]
    sensor: str
    memory_bytes: float | None
    power_w: float | None = None
    problems: tuple[str, ...] = ()
    auto: bool = False
    """True for the device that "auto" opens."""


def open_device(spec: str, *, seed: int = 0) -> Device:
    """Open the device that ``spec`` names.

    "jetson", "cpu", "nvidia:0", "agent" and "external:URL or COMMAND" for real devices, with options
    behind them (docs/boards.md); "sim:jetson-nano" and other simulated boards, ":cpu" behind it for the board's CPU;
    the path of a board file; "replay:FILE" for a table that is measured, a CSV file or a
    profile; "NAME" or "NAME:REST" for a third party's device. "auto" is the first of this
    computer's agent, Jetson, NVIDIA GPU and CPU that works. ``seed`` is that of a simulated sensor's noise.

    Raises: UnknownName, InputError; DeviceError if a device does not answer or a third party's cannot be loaded,
    in particular DeviceUnavailable if a board is missing, has no power sensor, or may not be used.
    """
    device = _opener(spec)(seed)
    device.spec = device.spec or spec  # "auto" has opened a device of another name
    return device


def known_devices(sysfs_root: str | None = None) -> list[KnownDevice]:
    """The devices that can be named here: this computer's, the simulated boards, and those of third parties.

    With ``sysfs_root``, only the boards whose files are below that folder. A device that cannot be used is listed with
    its ``problems``; but not this computer's CPU if it has neither clock nor sensor, as in most virtual machines.
    Raises: InputError if there is no such folder.
    """
    from wattune.devices.auto import found, marked

    if sysfs_root is not None and not os.path.isdir(sysfs_root):
        raise InputError("no such folder", value=sysfs_root, hint="--sysfs-root needs a folder with sys/ in it")
    real = marked([_listed(spec, find) for spec, find in found(sysfs_root)])
    if sysfs_root is not None:
        return real
    real = [device for device in real if device.backend != "cpu" or device.knobs or device.sensor != NO_SENSOR]
    simulated = [_listed(spec, lambda spec=spec: open_device(spec)) for spec in _simulated()]  # type: ignore[misc]
    return real + simulated + [_foreign(point) for point in _third_parties()]


def _opener(spec: str) -> Callable[[int], Device]:
    match = re.fullmatch(r"([^:?]*):?(.*)", spec, re.DOTALL)
    assert match is not None
    scheme, rest = match.groups()
    if scheme in OPENERS and (rest or scheme in ALONE):
        return lambda seed: _load(scheme)(rest, seed=seed)
    if spec.removesuffix(":cpu").endswith(".toml"):
        return lambda seed: _load("sim")(spec, seed=seed)
    for point in _third_parties():
        if point.name == scheme:
            return lambda seed: _third_party(point)(rest, seed=seed)
    shown = [
        "auto",
        "jetson",
        "cpu",
        "nvidia:0",
        "agent",
        "external:URL",
        *_simulated(),
        "replay:TABLE.csv",
        "BOARD.toml",
    ]
    raise UnknownName("device", spec, [*shown, *(point.name for point in _third_parties())])


def _simulated() -> list[str]:
    specs = []
    for name in board_names():
        specs.append(f"sim:{name}")
        if builtin_board(name).cpu is not None:
            specs.append(f"sim:{name}:cpu")
    return specs


def _third_parties() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda point: point.name)


def _load(scheme: str) -> Opener:
    module, _, function = OPENERS[scheme].partition(":")
    opener: Opener = getattr(importlib.import_module(module), function)
    return opener


def _third_party(point: EntryPoint) -> Opener:
    try:
        opener: Opener = point.load()
    except (ImportError, AttributeError) as error:
        raise DeviceError(f"device {point.name} cannot be loaded from {point.value}: {error}") from error
    return opener


def _foreign(point: EntryPoint) -> KnownDevice:
    return _listed(point.name, lambda: _third_party(point)(""))


def _listed(spec: str, find: Callable[[], Device]) -> KnownDevice:
    """Entry for a device; a device that cannot be opened is listed with the error as its problem."""
    backend = re.split("[:?]", spec)[0]
    try:
        device = find()
    except WattuneError as error:
        return KnownDevice(spec, backend, spec, "", None, (), "", None, problems=(str(error),))
    try:
        problems, power_w = list(device.problems), None
        if device.sensor.rail:
            try:
                power_w = device.power_w()
            except DeviceError as error:
                problems += [] if str(error) in problems else [str(error)]
        return KnownDevice(
            spec=spec,
            backend=backend,
            name=device.name,
            mode=device.mode,
            kind=device.kind,
            knobs=device.offered,
            sensor=_described(device.sensor),
            memory_bytes=device.memory_bytes,
            power_w=power_w,
            problems=tuple(problems),
        )
    finally:
        device.close()


def _described(sensor: Sensor) -> str:
    if not sensor.rail:
        return NO_SENSOR
    parts = [f"{sensor.rail} ({sensor.covers})" if sensor.covers else sensor.rail]
    if sensor.period_s:
        parts.append(f"every {sensor.period_s:g} s")
    if sensor.window_s:
        parts.append(f"mean over {sensor.window_s:g} s")
    if sensor.resolution_w:
        parts.append(f"steps of {1e3 * sensor.resolution_w:g} mW")
    return ", ".join(parts)
