"""All checks of a device, in order: the device, its files, its sensor, the software."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from wattune.devices import Device, open_device
from wattune.devices.spec_options import split_options
from wattune.doctor import board_checks
from wattune.doctor.board_checks import Finding, check_torch
from wattune.doctor.interpreter import Interpreter, own_interpreter
from wattune.doctor.load import BusyProcess, cores
from wattune.doctor.sensor_checks import LOAD_S, REST_S, check_sensing
from wattune.errors import DeviceError, InputError, WattuneError
from wattune_agent.discovery import families, find_board
from wattune_agent.errors import AgentError
from wattune_agent.tree import Tree

LOCAL = ("jetson", "cpu")
"""Devices that are read from this machine's files."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Examination:
    """Findings about a device."""

    device: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[Finding, ...]:
        """Findings that prevent training on this device."""
        return tuple(finding for finding in self.findings if finding.state == "fail")


def default_device(root: str = "/") -> str:
    """The first device that is present: a Jetson before its CPU. Raises: InputError."""
    present = families(Tree(root))
    if not present:
        raise InputError(
            "no board that wattune can read",
            value=root,
            allowed="a Jetson's devfreq or INA3221, or a CPU's cpufreq or RAPL, below sys/",
            hint="choose a device with --device, such as nvidia or external:...",
        )
    return present[0]


def board_tree(spec: str) -> tuple[Tree, str] | None:
    """The files that a device is read from, and its family; None if it is not read from this machine's files.

    Raises: InputError.
    """
    scheme = spec.partition("?")[0]
    if scheme not in LOCAL:
        return None
    _, options = split_options(spec, "?", ("root", "knobs", "meter"), device=scheme)
    return Tree(options.get("root", "/")), scheme


def examine(spec: str, *, say: Say = lambda text: None) -> Examination:
    """Run every check; nothing on the board is changed.

    Of a folder of files (``jetson?root=DIR``) only the files are checked: nothing can be measured there.
    Raises: InputError for a device that cannot be examined.
    """
    place, scheme = board_tree(spec), re.split("[:?]", spec)[0]
    try:
        device = open_device(spec)
    except DeviceError as error:
        return Examination(spec, (Finding("device", "fail", str(error)), *_files(place)))
    try:
        if device.kind != "measured" and place is None and scheme != "agent":
            raise InputError("nothing to examine: this device is not a physical one", value=spec)
        findings = [*_device(device), *_files(place)]
        if device.kind == "measured":
            found = own_interpreter()
            sensing = _sensing(device, found, say)
            findings += [*sensing, check_torch(found, needs_gpu=device.trains_on == "gpu" and scheme != "external")]
    finally:
        device.close()
    return Examination(device.name, tuple(findings))


def _files(place: tuple[Tree, str] | None) -> list[Finding]:
    if place is None:
        return []
    tree, family = place
    try:
        board = find_board(tree, family)
    except AgentError:
        return []  # opening the device has reported it already
    return [
        board_checks.check_permissions(board),
        *board_checks.check_pinned(board),
        board_checks.check_holder(board),
        board_checks.check_left_behind(tree),
        board_checks.check_agent(tree),
    ]


def device_tree(device: Device, place: tuple[Tree, str] | None) -> Tree | None:
    """The files of the device's board: those of ``place``, or this machine's if an agent reads them; None otherwise."""
    if place is not None:
        return place[0]
    return Tree() if device.spec.partition(":")[0] == "agent" and device.kind == "measured" else None


def _device(device: Device) -> list[Finding]:
    return [
        *board_checks.check_device(device),
        board_checks.check_rails(device),
        board_checks.check_clock(device),
        board_checks.check_mode(device),
        board_checks.check_conditions(device),
    ]


def _sensing(device: Device, found: Interpreter, say: Say) -> list[Finding]:
    on_gpu = device.trains_on == "gpu" and found.gpu is not None
    with ExitStack() as stack:
        try:
            load: BusyProcess | None = stack.enter_context(BusyProcess(cores(), on_gpu=on_gpu))
        except (WattuneError, OSError):
            load = None
        under = "" if load is None else f", then {LOAD_S:g} s with {load.words}"
        say(f"reading the sensor for {REST_S:g} s at rest{under}")
        return check_sensing(device, load)
