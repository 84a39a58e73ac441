"""Groups from devices, or from the names of devices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import cast

from wattune.devices.base import Device
from wattune.devices.cards import trained_elsewhere
from wattune.devices.group.device_group import DeviceGroup
from wattune.devices.group.parts import label, named
from wattune.devices.group.real import RealGroup
from wattune.devices.group.virtual import VirtualGroup
from wattune.devices.registry import open_device
from wattune.devices.virtual_time import VirtualDevice
from wattune.errors import DeviceError, InputError


def device_group(members: Sequence[Device], *, pools: Sequence[int] | None = None) -> DeviceGroup:
    """These devices as one. ``pools``: for each member the number of its pool; the members of a pool share one cap, and
    all pools have the same. By default all members share it; with a pool for each, it holds for every device.

    Raises: InputError for devices that cannot work as one.
    """
    if not members:
        raise InputError("a group needs devices", value="none", allowed="at least one")
    chosen = [0] * len(members) if pools is None else list(pools)
    if len(chosen) != len(members):
        raise InputError("pools", value=chosen, allowed=f"a number for each of the {len(members)} devices")
    _check_limited(members)
    if not frozenset.intersection(*(member.data_types for member in members)):
        each = ", ".join(dict.fromkeys(f"{m.name} {'/'.join(sorted(m.data_types))}" for m in members))
        raise InputError("the devices of a group have no data type in common", value=each)
    if all(member.executes_steps for member in members):
        return RealGroup(members, chosen)
    if all(isinstance(member, VirtualDevice) and not member.executes_steps for member in members):
        return VirtualGroup(cast("Sequence[VirtualDevice]", members), chosen)
    raise InputError(
        "the devices of a group",
        value=", ".join(dict.fromkeys(member.name for member in members)),
        allowed="all real, or all simulated or replayed",
    )


def open_group(specs: Sequence[str | Device], *, pools: Sequence[int] | None = None, seed: int = 0) -> DeviceGroup:
    """Open the devices of these names (see ``open_device``) as one; a device among them is open already. ``pools`` as
    for ``device_group``. The seed of the device of rank i is ``seed + i``.

    Raises: InputError and DeviceError that name the rank; what was opened is closed then.
    """
    with ExitStack() as opened:
        members: list[Device] = []
        for rank, spec in enumerate(specs):
            if isinstance(spec, Device):
                members.append(spec)
                continue
            try:
                member = open_member(spec, seed=seed + rank)
            except (DeviceError, InputError) as error:
                error.args = (f"rank {rank}, {spec}: {error}",)
                raise
            opened.callback(member.close)
            members.append(member)
        group = device_group(members, pools=pools)
        opened.pop_all()
        return group


def open_member(spec: str, *, seed: int) -> Device:
    """Open a device for a group. A card need not be the one that CUDA shows this process first.

    Raises: InputError for several knobs, UnknownName; DeviceError.
    """
    with trained_elsewhere():
        device = open_device(spec, seed=seed)
    try:
        check_knob(device)
    except InputError:
        device.close()
        raise
    return device


def check_knob(device: Device) -> None:
    """Leave a member one knob at most. Raises: InputError."""
    device.only_knob("a group of devices", hint="leave out that device, or open it with one clock (knobs=gpu)")


def _check_limited(members: Sequence[Device]) -> None:
    """Check that each member has one knob, or none of them any. Raises: InputError."""
    for rank, member in enumerate(members):
        with named(rank, member):
            check_knob(member)
    fixed = [rank for rank, member in enumerate(members) if not member.knobs]
    if fixed and len(fixed) < len(members):
        names = ", ".join(label(rank, members[rank]) for rank in fixed)
        raise InputError(
            "a group cannot hold a cap with some devices that cannot be limited",
            value=names,
            allowed="a clock or a power limit on all devices, or on none",
            hint="run an agent as root on that computer (docs/boards.md), or leave the device out",
        )
