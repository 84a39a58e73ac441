"""What can be seen in a board's files: who may write, who holds it, what was left behind. Nothing is written."""

from __future__ import annotations

import os

from wattune.doctor.finding import Finding
from wattune_agent.board import Board
from wattune_agent.errors import AgentError
from wattune_agent.leftover import busy_with, left_behind, lock_path
from wattune_agent.lock import Lock
from wattune_agent.memory import free_bytes
from wattune_agent.tree import Tree

AGENT_FOLDER = "/run/wattune"
AGENT_SOCKET = f"{AGENT_FOLDER}/agent.sock"
WAYS_OUT = (
    "run the agent as root (wattune-agent serve) and use --device agent, or install deploy/99-wattune.rules and join "
    "the group wattune; see docs/boards.md"
)
LEAST_FREE_BYTES = 1 << 30


def check_permissions(board: Board) -> Finding:
    """Whether this user may write what pinning writes."""
    files = [] if board.clock is None else board.clock.files()
    shut = [path for path in files if not board.tree.writable(path)]
    if not shut:
        return Finding("permissions", "ok", f"all {len(files)} files that pinning writes can be written")
    more = f" and {len(shut) - 1} more" if len(shut) > 1 else ""
    text = f"{shut[0]}{more} cannot be written"
    if os.geteuid() == 0:
        return Finding(
            "permissions",
            "fail",
            f"{text}, not even as root: /sys is read-only here, as in a container",
            # The folder: a socket that is mounted by itself is gone when the agent is started anew.
            f"run the agent outside the container, and give its folder to it: -v {AGENT_FOLDER}:{AGENT_FOLDER}",
        )
    return Finding("permissions", "fail", f"{text} by this user", WAYS_OUT)


def check_pinned(board: Board) -> list[Finding]:
    """Whether the clock is held at one frequency already, as jetson_clocks does it."""
    if board.clock is None:
        return []
    try:
        pinned_mhz = board.clock.pinned_mhz()
    except AgentError as error:
        return [Finding("pinned", "fail", str(error))]
    if pinned_mhz is None:
        return []
    fix = "if that was not meant: sudo jetson_clocks --restore, or set the power mode again (sudo nvpmodel -m ID)"
    return [Finding("pinned", "warn", f"the {board.clock.unit}'s clock is held at {pinned_mhz:g} MHz already", fix)]


def check_holder(board: Board) -> Finding:
    """Whether another process controls the board now."""
    if board.clock is None:
        return Finding("holder", "ok", "nothing to hold")
    lock = Lock(board.tree, lock_path(board.clock.files()))
    try:
        free = lock.acquire()  # others know that somebody may only be looking, and ask again
    except AgentError as error:
        return Finding("holder", "warn", str(error))
    if free:
        lock.release()
        return Finding("holder", "ok", "no other process controls the board")
    return Finding("holder", "warn", str(busy_with(board.tree, board.family)), "wait for it, or end it")


def check_left_behind(tree: Tree) -> Finding:
    """A snapshot of a process that did not come to restoring the board."""
    try:
        snapshot = left_behind(tree)
    except AgentError as error:
        return Finding("left behind", "fail", str(error), "remove that file once the board is as you want it")
    if snapshot is None:
        return Finding("left behind", "ok", "nothing")
    return Finding("left behind", "fail", "a process ended without restoring the board's clocks", "wattune restore")


def check_memory(tree: Tree) -> Finding:
    """What a training may use of the memory that GPU, CPU and system share."""
    try:
        free = free_bytes(tree)
    except AgentError as error:
        return Finding("memory", "warn", str(error))
    text = f"{free / 2**30:.1f} GiB free for training, a margin for the system taken off"
    if free < LEAST_FREE_BYTES:
        return Finding(
            "memory", "warn", text, "end other programs, the desktop first: sudo systemctl isolate multi-user"
        )
    return Finding("memory", "ok", text)


def check_agent(tree: Tree) -> Finding:
    """Whether an agent runs here, and whether this user may talk to it."""
    if not tree.exists(AGENT_SOCKET):
        return Finding("agent", "ok", "not running; it is needed in containers, and where you are not root")
    if tree.writable(AGENT_SOCKET):
        return Finding("agent", "ok", f"running: --device agent ({AGENT_SOCKET})")
    fix = "sudo usermod -aG wattune $USER, and log in again"
    return Finding("agent", "warn", f"running, but {AGENT_SOCKET} is shut to this user", fix)
