"""Kills at random moments: of a controller that pins and slices, of a restore, of a guard, an agent and its client."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.agent.test_agent_kills import in_child, made, restore, use
from tests.support.agent_socket import ENVIRONMENT, Holder, serving
from tests.support.agent_trees import MadeTree, texts
from tests.support.board_records import unpack
from tests.support.live_board import wait_for

from wattune_agent.leftover import restore_left_behind
from wattune_agent.snapshot import snapshots
from wattune_agent.tree import Tree

BOARDS = ("gpu", "cpu", "nano-jp4", "agx-thor-r38")
IN_PROCESS, PROCESSES = 220, 40
"""Controllers that are to be killed on each of the boards, and processes of each kind."""

RESTORES = 0.25
"""Share of the killed controllers after which a restore is to be killed as well."""

LATEST_S = 0.6
"""Latest kill after the start of a process."""


def kills() -> dict[str, Any]:
    """Number of kills by what was killed, boards that were changed then, and boards that a restore left changed."""
    counts = {"killed": 0, "changed": 0, "changed_after_restore": 0}
    with tempfile.TemporaryDirectory() as name:
        for board in BOARDS:
            _on_files(board, Path(name, board), counts)
        for kind in ("guard", "agent", "client"):
            _of_processes(kind, Path(name, kind), counts)
    return counts


def _on_files(board: str, folder: Path, counts: dict[str, int]) -> None:
    root, family = made(folder, board)
    before, chance = texts(root), random.Random(board)
    calls = int(in_child(lambda: use(root, family, random.Random(0), 0))[0])
    for _ in range(IN_PROCESS):
        seed = chance.random()
        acts = [lambda: use(root, family, random.Random(seed), calls), lambda: restore(root, seed)]  # noqa: B023
        for act in acts[: 1 + (chance.random() < RESTORES)]:
            counts["killed"] += in_child(act)[1] == signal.SIGKILL
            counts["changed"] += texts(root) != before
        _restore(MadeTree(root), root, before, counts)


def _of_processes(kind: str, folder: Path, counts: dict[str, int]) -> None:
    folder.mkdir()
    root, chance = unpack("orin-nano-jp6", folder / "board"), random.Random(kind)
    before, socket = texts(root), folder / "agent.sock"
    for _ in range(PROCESSES):
        with ExitStack() as stack:
            # The files do not follow their limits: only the lowest clock is one that they show.
            if kind == "guard":
                options = ["--sysfs-root", str(root), "--device", "jetson", "--clock", "306MHz", "--cap", "50W"]
                command = [sys.executable, "-m", "wattune_agent", "guard", *options, "--", "sleep", "2"]
                process: Any = stack.enter_context(
                    subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.DEVNULL)
                )
            else:
                process = stack.enter_context(serving(root, socket))
                holder = Holder(socket, ["pin", 306.0], ["guard", 50.0])
                stack.callback(holder.end)
                process = holder.process if kind == "client" else process
            time.sleep(chance.uniform(0.0, LATEST_S))
            process.kill()
            counts["killed"] += process.wait() == -signal.SIGKILL
            counts["changed"] += texts(root) != before
            if kind == "client":  # whose agent restores the board
                wait_for(lambda: texts(root) == before)
        _restore(Tree(str(root)), root, before, counts)


def _restore(tree: Tree, root: Path, before: dict[str, str], counts: dict[str, int]) -> None:
    restore_left_behind(tree)
    counts["changed_after_restore"] += texts(root) != before or bool(snapshots(tree))
