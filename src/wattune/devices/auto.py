"""The device "auto": what this computer is, or has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from wattune.devices.base import Device
from wattune.devices.local import agent_specs, local_specs
from wattune.devices.options import split_options, with_options
from wattune.devices.registry import KnownDevice, open_device
from wattune.errors import BoardUnusable, DeviceError, InputError

ORDER = ("agent", "jetson", "nvidia", "cpu")
"""Who is asked first: an agent has the rights that this process may lack, and a GPU is what most train on."""


def open_auto(rest: str, *, seed: int = 0) -> Device:
    """The first that is here and has a power sensor that reads: the system's agent, the Jetson, the first NVIDIA GPU,
    the CPU. ``?root=`` names a folder with a board's files instead, ``&mode=`` a power mode; an agent or a card has
    neither.

    Raises: BoardUnusable that lists what was tried; InputError.
    """
    before, options = split_options(rest, "?", {"root", "mode"}, device="auto")
    if before:
        raise InputError("auto: nothing can stand behind the name", value=before, hint="use --device auto")
    tried: list[str] = []
    for spec in _specs(options, tried):
        try:
            return open_device(spec, seed=seed)
        except DeviceError as error:
            tried.append(f"{spec}: {error}")
    said = "; ".join(tried) or f"neither {', '.join(ORDER[:-1])} nor {ORDER[-1]} is here"
    raise BoardUnusable(f"no device to train on was found ({said}); name one in place of auto, see `wattune devices`")


def marked(known: Sequence[KnownDevice]) -> list[KnownDevice]:
    """The same, the one that "auto" opens among them marked."""
    working = [device for device in known if device.backend in ORDER and device.power_w is not None]
    first = min(working, key=lambda device: ORDER.index(device.backend), default=None)
    return [replace(device, auto=True) if device is first else device for device in known]


def _specs(options: dict[str, str], tried: list[str]) -> Iterator[str]:
    """Names of what is here, in order; what could not even be looked for is told in ``tried``."""
    if not options:
        yield from agent_specs()
    local = {spec.partition("?")[0]: spec for spec in local_specs(options.get("root"))}
    if "jetson" in local:
        yield with_options(local["jetson"], mode=options.get("mode"))
    if not options:
        from wattune.devices.nvidia import nvidia_specs

        try:
            yield from nvidia_specs()
        except DeviceError as error:
            tried.append(f"nvidia: {error}")
    if "cpu" in local:
        yield with_options(local["cpu"], mode=options.get("mode"))
