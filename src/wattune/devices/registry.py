"""From the text behind ``--device`` to a device."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from wattune.devices.base import Actuator, Device, Sensor
from wattune.devices.board import board_names, builtin_board
from wattune.errors import DeviceError, UnknownName, WattuneError
from wattune.records import Kind

OPENERS = {
    "recorded": "wattune.devices.recorded:open_recorded",
    "sim": "wattune.devices.simulated:open_simulated",
}
"""What stands before the colon -> a function of what stands behind it and a seed. Third parties add theirs in the
entry-point group ``wattune.devices``."""

GROUP = "wattune.devices"

Opener = Callable[..., Device]


@dataclass(frozen=True)
class KnownDevice:
    """A device that can be named: the text to name it by, what it has, and what keeps it from working here."""

    spec: str
    name: str
    mode: str
    kind: Kind | None
    actuator: Actuator | None
    settings: tuple[float, ...]
    sensor: str
    memory_bytes: float | None
    problems: tuple[str, ...] = ()


def open_device(spec: str, *, seed: int = 0) -> Device:
    """The device that ``spec`` names.

    "sim:jetson-nano" and its like, ":cpu" behind it for the board's CPU; the path of a board file; "recorded:FILE" for
    a profile that is replayed; "NAME" or "NAME:REST" of a third party's device. ``seed`` is that of a simulated
    sensor's noise.

    Raises: UnknownName, InputError; DeviceError where a third party's device cannot be loaded.
    """
    scheme, _, rest = spec.partition(":")
    if scheme in OPENERS and rest:
        return _load(scheme)(rest, seed=seed)
    if spec.removesuffix(":cpu").endswith(".toml"):
        return _load("sim")(spec, seed=seed)
    for point in _third_parties():
        if point.name == scheme:
            return _third_party(point)(rest, seed=seed)
    raise UnknownName("device", spec, [*_simulated(), "recorded:PROFILE.json", "BOARD.toml", *_names()])


def known_devices() -> list[KnownDevice]:
    """The devices that can be named here: the simulated boards and their CPUs, and those of third parties."""
    return [_known(spec, open_device(spec)) for spec in _simulated()] + [_foreign(p) for p in _third_parties()]


def _simulated() -> list[str]:
    specs = []
    for name in board_names():
        specs.append(f"sim:{name}")
        if builtin_board(name).cpu is not None:
            specs.append(f"sim:{name}:cpu")
    return specs


def _names() -> list[str]:
    return [point.name for point in _third_parties()]


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
    try:
        device = _third_party(point)("")
    except WattuneError as error:
        return KnownDevice(point.name, point.name, "", None, None, (), "", None, (str(error),))
    try:
        return _known(point.name, device)
    finally:
        device.close()


def _known(spec: str, device: Device) -> KnownDevice:
    return KnownDevice(
        spec=spec,
        name=device.name,
        mode=device.mode,
        kind=device.kind,
        actuator=device.actuator,
        settings=device.settings,
        sensor=_described(device.sensor),
        memory_bytes=device.memory_bytes,
    )


def _described(sensor: Sensor) -> str:
    parts = [sensor.rail]
    if sensor.period_s:
        parts.append(f"every {sensor.period_s:g} s")
    if sensor.window_s:
        parts.append(f"mean over {sensor.window_s:g} s")
    if sensor.resolution_w:
        parts.append(f"steps of {1e3 * sensor.resolution_w:g} mW")
    return ", ".join(parts)
