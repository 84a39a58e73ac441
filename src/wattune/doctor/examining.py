"""Everything that can be checked of a device, in order: its files, what it says of itself, its sensor, the software."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from wattune.devices import Device, open_device
from wattune.devices.options import split_options
from wattune.doctor import checks, files
from wattune.doctor.finding import Finding
from wattune.doctor.load import Busy, cores
from wattune.doctor.sensing import LOAD_S, REST_S, check_sensing
from wattune.doctor.software import Torch, check_torch, torch_here
from wattune.errors import DeviceError, InputError, WattuneError
from wattune_agent.discovery import families, find_board
from wattune_agent.errors import AgentError
from wattune_agent.tree import Tree

LOCAL = ("jetson", "cpu")
"""The devices that are read from files here."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Examination:
    """What was found of a device, and the figures of its sensor."""

    device: str
    findings: tuple[Finding, ...]
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> tuple[Finding, ...]:
        """What cannot be done here."""
        return tuple(finding for finding in self.findings if finding.state == "fail")


def default_device(root: str = "/") -> str:
    """The first device that is there: a Jetson before its CPU. Raises: InputError."""
    there = families(Tree(root))
    if not there:
        raise InputError(
            "no board is here that wattune can read",
            value=root,
            allowed="a Jetson's devfreq or INA3221, or a CPU's cpufreq or RAPL, below sys/",
            hint="name a device by --device, such as nvidia or external:...",
        )
    return there[0]


def tree_of(spec: str) -> tuple[Tree, str] | None:
    """The files that a device is read from, and its family; None where it is not read from files here.

    Raises: InputError.
    """
    scheme = spec.partition("?")[0]
    if scheme not in LOCAL:
        return None
    _, options = split_options(spec, "?", ("root", "mode"), device=scheme)
    return Tree(options.get("root", "/")), scheme


def examine(spec: str, *, say: Say = lambda text: None) -> Examination:
    """Check everything; changes nothing on the board.

    On a folder of files (``jetson?root=DIR``) only what the files say is checked: nothing can be measured there.
    Raises: InputError for a device that cannot be examined.
    """
    place, scheme = tree_of(spec), re.split("[:?]", spec)[0]
    figures: dict[str, float] = {}
    try:
        device = open_device(spec)
    except DeviceError as error:
        return Examination(spec, (Finding("device", "fail", str(error)), *_files(place)))
    try:
        if device.kind != "measured" and place is None and scheme != "agent":
            raise InputError("there is nothing to examine, this device is not a real one", value=spec)
        found = [*_device(device), *_files(place)]
        if device.kind == "measured":
            torch = torch_here()
            sensing, figures = _sensing(device, torch, say)
            found += [*sensing, check_torch(torch, needs_gpu=device.trains_on == "gpu" and scheme != "external")]
    finally:
        device.close()
    return Examination(device.name, tuple(found), figures)


def _files(place: tuple[Tree, str] | None) -> list[Finding]:
    if place is None:
        return []
    tree, family = place
    try:
        board = find_board(tree, family)
    except AgentError:
        return []  # opening the device has said so already
    return [
        files.check_permissions(board),
        *files.check_pinned(board),
        files.check_holder(board),
        files.check_left_behind(tree),
        files.check_memory(tree),
        files.check_agent(tree),
    ]


def _device(device: Device) -> list[Finding]:
    return [
        *checks.check_device(device),
        checks.check_rails(device),
        checks.check_clock(device),
        checks.check_mode(device),
        checks.check_conditions(device),
        *([checks.check_supply(device)] if device.spec.partition(":")[0] != "external" else []),
    ]


def _sensing(device: Device, torch: Torch, say: Say) -> tuple[list[Finding], dict[str, float]]:
    on_gpu = device.trains_on == "gpu" and torch.gpu is not None
    with ExitStack() as stack:
        try:
            load: Busy | None = stack.enter_context(Busy(cores(), on_gpu=on_gpu))
        except (WattuneError, OSError):
            load = None
        under = "" if load is None else f", then {LOAD_S:g} s with {load.words}"
        say(f"reading the sensor for {REST_S:g} s at rest{under}")
        return check_sensing(device, load)
