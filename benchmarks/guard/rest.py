"""What the loads do not show: a day of a guard with excursions, and the CPU time of a guard that slices."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.agent_trees import HIGH, board_in, gpu_tree

from benchmarks.guard.board import ORIN, SENSORS
from benchmarks.guard.rules import level
from wattune_agent.board import PowerSensor
from wattune_agent.controller import Controller
from wattune_agent.guarded import run_guarded
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


def cpu() -> dict[str, float]:
    """The share of a core that a guard takes on a board of files, with 20 readings a second and slices."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(str(gpu_tree(Path(folder))))
        board = board_in(tree)
        board.sensor = _Watts(tree)
        save_switch(tree, board.name, 0.005, 0.001)
        with Controller(board) as controller:
            begin_s = time.process_time()
            report = run_guarded(controller, ["sleep", f"{COST_S:g}"], clock_mhz=1020.0, cap_w=6.6, window_s=1.0)
            used_s = time.process_time() - begin_s
    shares = {f"{setting:g}": round(seconds / report.time_s, 3) for setting, seconds in report.settings_s}
    return {"percent_of_a_core": round(100 * used_s / report.time_s, 2), "seconds": COST_S, "shares": shares}


def rest() -> dict[str, Any]:
    return {"day": {"slices on": day(slices=True), "slices off": day(slices=False)}, "cpu": cpu()}
