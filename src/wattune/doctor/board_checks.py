"""Checks of a board that measure nothing: its files, the open device, the installed torch. None of these writes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from wattune.devices import Device
from wattune.doctor.interpreter import Interpreter
from wattune.errors import WattuneError
from wattune.point import knob_text
from wattune_agent.board import Board
from wattune_agent.client import AgentClient
from wattune_agent.errors import AgentError, Full, Gone
from wattune_agent.folders import board_lock
from wattune_agent.leftover import busy_with, left_behind
from wattune_agent.protocol import RESTART, STATED
from wattune_agent.tree import Tree

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One thing that a check found.

    ``state``: "ok"; "warn" if wattune works, with a drawback; "fail" if something cannot be done. ``text`` describes
    it, ``fix`` is what would help ("" if nothing needs fixing).
    """

    name: str
    state: State
    text: str
    fix: str = ""


AGENT_FOLDER = "/run/wattune"
AGENT_SOCKET = f"{AGENT_FOLDER}/agent.sock"
PERMISSION_FIX = "run the agent as root (wattune-agent serve) and use --device agent; see docs/boards.md"


def check_permissions(board: Board) -> Finding:
    """Check that this user may write the files that pinning a clock writes."""
    files = [] if board.clock is None else board.clock.files()
    read_only = [path for path in files if not board.tree.writable(path)]
    if not read_only:
        return Finding("permissions", "ok", f"all {len(files)} files that pinning the clock writes are writable")
    more = f" and {len(read_only) - 1} more" if len(read_only) > 1 else ""
    text = f"{read_only[0]}{more} cannot be written"
    if os.geteuid() == 0:
        return Finding(
            "permissions",
            "fail",
            f"{text}, not even as root: /sys is read-only here, as in a container",
            # The folder: a socket mounted alone is gone when the agent restarts.
            f"run the agent outside the container and mount its folder: -v {AGENT_FOLDER}:{AGENT_FOLDER}",
        )
    return Finding("permissions", "fail", f"{text} by this user", PERMISSION_FIX)


def check_pinned(board: Board) -> list[Finding]:
    """Check if the clock is already pinned to one frequency, as jetson_clocks does."""
    if board.clock is None:
        return []
    try:
        pinned_mhz = board.clock.pinned_mhz()
    except AgentError as error:
        return [Finding("pinned", "fail", str(error))]
    if pinned_mhz is None:
        return []
    fix = "if that was not intended: sudo jetson_clocks --restore, or set the power mode again (sudo nvpmodel -m ID)"
    return [Finding("pinned", "warn", f"the {board.clock.unit}'s clock is already pinned to {pinned_mhz:g} MHz", fix)]


def check_holder(board: Board) -> Finding:
    """Check if another process controls the board now."""
    if board.clock is None:
        return Finding("holder", "ok", "no clock to control")
    if not board.tree.is_ours:
        return Finding("holder", "ok", "only root can tell")
    try:
        # Other processes retry, since a check holds the lock only for a moment.
        if board_lock(board.tree, board.family).is_free():
            return Finding("holder", "ok", "no other process controls the board")
    except AgentError as error:
        return Finding("holder", "warn", str(error))
    return Finding("holder", "warn", str(busy_with(board.tree, board.family)), "wait for that process, or end it")


def check_left_behind(tree: Tree) -> Finding:
    """Check for the snapshot of a process that ended without restoring the board."""
    if not tree.is_ours:
        return Finding("left behind", "ok", "only root can tell")
    try:
        snapshot = left_behind(tree)
    except AgentError as error:
        return Finding(
            "left behind", "fail", str(error), "delete that file once the board's clocks are as you want them"
        )
    if snapshot is None:
        return Finding("left behind", "ok", "nothing")
    return Finding("left behind", "fail", "a process ended without restoring the board's clocks", "wattune restore")


def check_agent(tree: Tree) -> Finding:
    """Check if an agent runs here, if this user may connect to it, and if it is of the installed version."""
    if not tree.exists(AGENT_SOCKET):
        return Finding("agent", "ok", "not running; needed only in containers and by users other than root")
    if not os.access(tree.inside(AGENT_SOCKET), os.W_OK):
        fix = "sudo usermod -aG wattune $USER, then log in again"
        return Finding("agent", "warn", f"running, but this user may not write to {AGENT_SOCKET}", fix)
    try:
        with AgentClient(tree.inside(AGENT_SOCKET)) as client:
            known = client.describe().get("requests")
    except Full as error:
        return Finding("agent", "warn", f"running, but {error}", "end some of the processes that use it")
    except Gone as error:  # of another version of the protocol, which its text tells
        return Finding("agent", "fail", str(error), RESTART)
    except AgentError as error:
        return Finding("agent", "warn", str(error), "sudo systemctl start wattune-agent")
    if known != STATED:
        return Finding("agent", "warn", "running, and of another version than the installed wattune", RESTART)
    return Finding("agent", "ok", f"running: --device agent ({AGENT_SOCKET})")


HOT_C = 85.0
"""A board that is hotter than this at rest will be throttled under load."""
USUAL_EVENTS = 1
"""Over-current events since the start that are nothing to worry about: an AGX Thor always has one."""


def check_device(device: Device) -> list[Finding]:
    """Name the device, and list the problems that it reports."""
    origin = "" if device.kind == "measured" else f", {device.kind}"
    problems = [Finding("device", "warn", problem) for problem in device.problems]
    return [Finding("device", "ok", f"{device.name}{origin}"), *problems]


def check_rails(device: Device) -> Finding:
    """Read the power sensor once: the rail that counts as the device's power."""
    sensor = device.sensor
    try:
        power_w = device.power_w()
    except WattuneError as error:
        return Finding("rails", "fail", str(error), "check that the sensor can be read")
    text = f"{sensor.rail} {power_w:.3f} W" + (f", {sensor.covers}" if sensor.covers else "")
    return Finding("rails", "ok", text)


def check_clock(device: Device) -> Finding:
    """Check which clocks or power limits can be set."""
    if not device.knobs:
        return Finding("clock", "warn", "no clock can be set: profiling and planning cover batch sizes only")
    ranges = (
        f"{len(knob.values)} settings from {knob.values[0]:g} to {knob_text(knob.name, knob.values[-1])}"
        for knob in device.knobs
    )
    return Finding("clock", "ok", "; ".join(ranges))


def check_mode(device: Device) -> Finding:
    """Report the board's power mode, which is part of a profile's key."""
    return Finding("mode", "ok", device.mode or "the board reports no power mode")


def check_conditions(device: Device) -> Finding:
    """Check temperature, throttling and over-current events."""
    now = device.conditions()
    parts = [] if now.temperature_c is None else [f"hottest zone {now.temperature_c:.1f} °C"]
    events = now.over_current or 0
    if events:
        parts.append(f"{events} over-current event{'s' * (events > 1)} since the board was started")
    parts += [f"the clock is held by {notice}, its ordinary state" for notice in now.notices]
    text = ", ".join(parts) or "the board reports no temperature"
    supply = "if the count rises under load, the power supply may be too weak"
    if now.throttled:
        by = ", ".join(now.throttled)
        return Finding("conditions", "fail", f"throttled now by {by}; {text}", "cool the board and try again")
    if now.temperature_c is not None and now.temperature_c > HOT_C:
        return Finding("conditions", "warn", text, "cool the board: it will be throttled under load")
    if events > USUAL_EVENTS:
        return Finding("conditions", "warn", text, supply)
    return Finding("conditions", "ok", text, f"one is usual on some boards; {supply}" if events else "")


def check_torch(found: Interpreter, *, needs_gpu: bool) -> Finding:
    """Check that the torch of this interpreter trains on the processor whose power is measured."""
    if found.torch is None:
        return Finding(
            "torch",
            "fail",
            f"torch cannot be loaded: {found.failure}",
            "install the torch of your board, see docs/boards.md; `wattune guard` works without it",
        )
    if found.gpu is not None:
        built = f" with CUDA {found.cuda}" if found.cuda else ""  # the ROCm build has another toolkit
        return Finding("torch", "ok", f"torch {found.torch}{built}, on {found.gpu}")
    if not needs_gpu:
        return Finding("torch", "ok", f"torch {found.torch}, on the CPU")
    if found.cuda is None:
        return Finding(
            "torch",
            "fail",
            f"torch {found.torch} is a CPU build: training would leave the GPU idle, and its clock without effect",
            "install the torch build for your GPU (a Jetson: NVIDIA's wheel for its JetPack), see docs/boards.md",
        )
    return Finding(
        "torch",
        "fail",
        f"torch {found.torch} is built for CUDA {found.cuda}, but finds no GPU"
        + (f": {found.failure}" if found.failure else ""),
        "on a Jetson, install NVIDIA's torch wheel for your JetPack; elsewhere, check that nvidia-smi works; start "
        "containers with --runtime nvidia; see docs/boards.md",
    )
