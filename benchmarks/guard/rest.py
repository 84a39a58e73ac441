"""What the loads do not show: a day with excursions, the CPU time of guard and agent, training, and kills.

Kills are at random moments: of a controller that pins and slices, of a restore, of a guard, an agent and its client.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.agent.test_agent_kills import in_child, made, restore, use
from tests.support.agent_socket import ENVIRONMENT, Holder, serving
from tests.support.agent_trees import HIGH, MadeTree, board_in, gpu_tree, texts
from tests.support.board_records import unpack
from tests.support.live_board import wait_for

from benchmarks.guard.board import ORIN, SENSORS
from benchmarks.guard.rules import level
from benchmarks.guard.training import training
from wattune_agent.board import PowerSensor
from wattune_agent.client import AgentClient
from wattune_agent.controller import Controller
from wattune_agent.guarded import run_guarded
from wattune_agent.leftover import restore_left_behind
from wattune_agent.server import serve
from wattune_agent.slicing import save_switch
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


HOURS = 24
TICK_S = 0.05
"""Time between two readings with slices; without, it is twice that."""

EVERY_S, EXCURSION_S = 1800.0, 20.0
LIGHT, HEAVY = 0.4, 1.0
"""Draws of the load: a usual one, which fits at the highest clock, and an excursion, which does not."""

CAP_W = 9.0
COST_S = 30.0


def day(*, slices: bool) -> dict[str, float]:
    """The mean clock of the first and of the last hour of a day with an excursion each half hour."""
    rule, tick_s = level(ORIN, SENSORS[0], CAP_W, slices=slices), TICK_S if slices else 2 * TICK_S
    setting, clocks, above_s = len(ORIN.clocks_mhz) - 1, [], 0.0
    window_w: list[float] = []
    for tick in range(round(HOURS * 3600 / tick_s)):
        time_s = tick * tick_s
        draw = HEAVY if time_s % EVERY_S > EVERY_S - EXCURSION_S else LIGHT
        power_w = ORIN.rest_w + draw * (ORIN.full_w - ORIN.rest_w) * ORIN.shares[setting]
        window_w = [*window_w[1 - round(1 / tick_s) :], power_w]
        above_s += tick_s * (sum(window_w) / len(window_w) > 1.02 * CAP_W)
        clocks.append(ORIN.clocks_mhz[setting])
        setting = rule(time_s, power_w)
    hour = round(3600 / tick_s)
    first, last = statistics.fmean(clocks[:hour]), statistics.fmean(clocks[-hour:])
    return {
        "first_hour_mhz": round(first, 1),
        "last_hour_mhz": round(last, 1),
        "last_over_first": round(last / first, 4),
        "above_s": round(above_s, 1),
    }


class _Watts(PowerSensor):
    """Power by the clock that the board's files hold, with one read of a file, as a rail has."""

    rail = "made"
    period_s = window_s = 0.007

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def read(self) -> float:
        return int(self._tree.read(HIGH)) / 1e8


def cpu() -> dict[str, Any]:
    """The shares of a core that an agent and a guard that asks it take, on a board of files that is read 20 times a
    second and whose clock is sliced."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(str(gpu_tree(Path(folder))))
        board = board_in(tree)
        board.sensor = _Watts(tree)
        save_switch(tree, board.name, 0.005, 0.001)
        socket = Path(folder, "agent.sock")
        if (pid := os.fork()) == 0:
            serve(Controller(board), str(socket))
            os._exit(0)
        assert wait_for(socket.exists)
        with AgentClient(str(socket)) as client:
            begin_s = time.process_time()
            report = run_guarded(client, ["sleep", f"{COST_S:g}"], clock_mhz=1020.0, cap_w=6.6, window_s=1.0)
            used_s = time.process_time() - begin_s
        os.kill(pid, signal.SIGTERM)
        agent = os.wait4(pid, 0)[2]
    shares = {f"{setting:g}": round(seconds / report.time_s, 3) for setting, seconds in report.settings_s}
    return {
        "agent_percent": round(100 * (agent.ru_utime + agent.ru_stime) / report.time_s, 2),
        "guard_percent": round(100 * used_s / report.time_s, 2),
        "readings_per_s": round(report.readings / report.time_s, 1),
        "seconds": COST_S,
        "shares": shares,
    }


def rest() -> dict[str, Any]:
    """The figures, each by its name."""
    days = {"slices on": day(slices=True), "slices off": day(slices=False)}
    return {"day": days, "cpu": cpu(), "training": training(), "kills": kills()}
