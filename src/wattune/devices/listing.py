"""Devices of this computer, or of a folder of files: their names, and for each a call that finds it.

Found, not opened for training: a device that lacks a sensor is listed with what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from wattune.devices.agent import agent_specs, find_agent, find_local, local_specs
from wattune.devices.base import Device
from wattune.errors import DeviceError, InputError

Find = Callable[[], Device]


def found_in(root: str) -> Iterator[tuple[str, Find]]:
    """The boards whose files are below ``root``. Raises: InputError if there is no such folder."""
    if not Path(root).is_dir():
        raise InputError("no such folder", value=root, hint="--sysfs-root needs a folder with sys/ in it")
    yield from _local(root)


def found_here() -> Iterator[tuple[str, Find]]:
    """This computer's devices, and the agent that runs on it."""
    yield from _local(None)
    for spec in agent_specs():
        yield spec, partial(find_agent, "")
    yield from _nvidia()


def _local(root: str | None) -> Iterator[tuple[str, Find]]:
    for spec in local_specs(root):
        family, mark, options = spec.partition("?")
        yield spec, partial(find_local, family, mark + options)


def _nvidia() -> Iterator[tuple[str, Find]]:
    from wattune.devices.nvidia import find_nvidia, nvidia_specs

    try:
        specs = nvidia_specs()
    except DeviceError as error:
        yield "nvidia:0", partial(_fail, error)
        return
    for spec in specs:
        yield spec, partial(find_nvidia, spec.partition(":")[2])


def _fail(error: DeviceError) -> Device:
    raise error
