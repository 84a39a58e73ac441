"""Devices of this computer, or of a folder of files; and "auto", the first usable one.

Listed devices are found, not opened for training: one that lacks a sensor is listed with what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from wattune.devices.agent import agent_specs, find_agent, find_local, find_nvidia, local_specs, nvidia_specs
from wattune.devices.base import Device
from wattune.devices.registry import KnownDevice, open_device
from wattune.devices.spec_options import split_options, with_options
from wattune.errors import DeviceError, DeviceUnavailable, InputError

ORDER = ("agent", "jetson", "nvidia", "cpu")
"""Order in which devices are tried: an agent has rights that this process may lack, and most training is on a GPU."""


def open_auto(rest: str, *, seed: int = 0) -> Device:
    """Open the first device of this computer whose power sensor works: the system's agent, the Jetson, the first NVIDIA
    GPU, the CPU. ``?root=`` names a folder with a board's files instead, ``&meter=`` a meter in place of the
    board's sensor; an agent or a card has neither. ``?knobs=`` names the clocks to set, see
    ``open_jetson``; a card has one alone.

    Raises: DeviceUnavailable that lists what was tried; InputError.
    """
    before, options = split_options(rest, "?", {"root", "knobs", "meter"}, device="auto")
    if before:
        raise InputError("auto: nothing can stand behind the name", value=before, hint="use --device auto")
    tried: list[str] = []
    for spec in _specs(options):
        try:
            return open_device(spec, seed=seed)
        except DeviceError as error:
            tried.append(f"{spec}: {error}")
    said = "; ".join(tried) or f"neither {', '.join(ORDER[:-1])} nor {ORDER[-1]} is here"
    raise DeviceUnavailable(
        f"no device to train on was found ({said}); name one in place of auto, see `wattune devices`"
    )


def found(root: str | None) -> Iterator[tuple[str, Callable[[], Device]]]:
    """The names of the boards below ``root``, each with a call that finds it; None: of this computer's devices."""
    for spec in local_specs(root):
        family, mark, options = spec.partition("?")
        yield spec, partial(find_local, family, mark + options)
    if root is None:
        yield from ((spec, partial(find_agent, "")) for spec in agent_specs())
        yield from ((spec, partial(find_nvidia, spec.partition(":")[2])) for spec in nvidia_specs())


def marked(known: Sequence[KnownDevice]) -> list[KnownDevice]:
    """The same devices, with a mark on the one that "auto" opens."""
    working = [device for device in known if device.backend in ORDER and device.power_w is not None]
    first = min(working, key=lambda device: ORDER.index(device.backend), default=None)
    return [replace(device, auto=True) if device is first else device for device in known]


def _specs(options: dict[str, str]) -> Iterator[str]:
    """Names of this computer's devices, in order."""
    knobs, is_plain = options.get("knobs"), not options.keys() - {"knobs"}
    ours = {key: options.get(key) for key in ("knobs", "meter")}
    if is_plain:
        yield from (with_options(spec, knobs=knobs) for spec in agent_specs())
    local = {spec.partition("?")[0]: spec for spec in local_specs(options.get("root"))}
    if "jetson" in local:
        yield with_options(local["jetson"], **ours)
    if not options:
        yield from nvidia_specs()
    if "cpu" in local:
        yield with_options(local["cpu"], **ours)
