"""What the loads do not show: a day with excursions, the CPU time of guard and agent, training, and kills."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.agent_trees import HIGH, board_in, gpu_tree
from tests.support.live_board import wait_for

from benchmarks.guard.board import ORIN, SENSORS
from benchmarks.guard.kills import kills
from benchmarks.guard.rules import level
from benchmarks.guard.training import training
from wattune_agent.board import PowerSensor
from wattune_agent.client import AgentClient
from wattune_agent.controller import Controller
from wattune_agent.guarded import run_guarded
from wattune_agent.server import serve
from wattune_agent.slicing import save_switch
from wattune_agent.tree import Tree

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
