"""Checks of a board's files: permissions, the process that holds it, what a crash left behind. Nothing is written."""

from __future__ import annotations

import os

from wattune.doctor.finding import Finding
from wattune_agent.board import Board
from wattune_agent.conditions import free_bytes
from wattune_agent.errors import AgentError
from wattune_agent.leftover import busy_with, left_behind, lock_path
from wattune_agent.lock import Lock
from wattune_agent.tree import Tree

AGENT_FOLDER = "/run/wattune"
AGENT_SOCKET = f"{AGENT_FOLDER}/agent.sock"
PERMISSION_FIX = (
    "run the agent as root (wattune-agent serve) and use --device agent, or install deploy/99-wattune.rules and join "
    "the group wattune; see docs/boards.md"
)
MIN_FREE_BYTES = 1 << 30


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
    lock = Lock(board.tree, lock_path(board.clock.files()))
    try:
        free = lock.acquire()  # other processes retry, since a check holds the lock only for a moment
    except AgentError as error:
        return Finding("holder", "warn", str(error))
    if free:
        lock.release()
        return Finding("holder", "ok", "no other process controls the board")
    return Finding("holder", "warn", str(busy_with(board.tree, board.family)), "wait for that process, or end it")


def check_left_behind(tree: Tree) -> Finding:
    """Check for the snapshot of a process that ended without restoring the board."""
    try:
        snapshot = left_behind(tree)
    except AgentError as error:
        return Finding(
            "left behind", "fail", str(error), "delete that file once the board's clocks are as you want them"
        )
    if snapshot is None:
        return Finding("left behind", "ok", "nothing")
    return Finding("left behind", "fail", "a process ended without restoring the board's clocks", "wattune restore")


def check_memory(tree: Tree) -> Finding:
    """Check how much of the memory that GPU, CPU and system share is free for training."""
    try:
        free = free_bytes(tree)
    except AgentError as error:
        return Finding("memory", "warn", str(error))
    text = f"{free / 2**30:.1f} GiB free for training, after a margin for the system"
    if free < MIN_FREE_BYTES:
        return Finding(
            "memory", "warn", text, "close other programs, the desktop first: sudo systemctl isolate multi-user"
        )
    return Finding("memory", "ok", text)


def check_agent(tree: Tree) -> Finding:
    """Check if an agent runs here, and if this user may connect to it."""
    if not tree.exists(AGENT_SOCKET):
        return Finding("agent", "ok", "not running; needed only in containers and by users other than root")
    if tree.writable(AGENT_SOCKET):
        return Finding("agent", "ok", f"running: --device agent ({AGENT_SOCKET})")
    fix = "sudo usermod -aG wattune $USER, then log in again"
    return Finding("agent", "warn", f"running, but this user may not write to {AGENT_SOCKET}", fix)
