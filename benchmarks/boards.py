"""Cost of reading and controlling a board, on files in place of one: aim 0.2 ms per reading.

Readings are taken on the files of every board in ``tests/boards``. These are plain files; on a board, the kernel's
driver also has to query the chip over a bus: one register of an INA3221 takes about 0.55 ms through sysfs (AGX Orin).
For the share of a core that readings take, every file waits as long, also those of temperatures, which are faster on a
board: an upper bound. Readings are CPU time, so that other load does not count. Clock and agent are measured by the
machine's clock, on a live board in user space, which checks its files every 2 ms and whose clock follows 50 ms later:
of these, medians count.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.agent_socket import serving
from tests.support.board_records import RECORDS, unpack
from tests.support.live_board import live

from benchmarks.timing import keep
from wattune.devices.agent import BoardDevice
from wattune_agent.client import AgentClient
from wattune_agent.conditions import conditions
from wattune_agent.controller import Controller
from wattune_agent.discovery import families, find_board
from wattune_agent.tree import Tree

SENSED = [path for path in sorted(RECORDS.glob("*.json")) if "raspberry" not in path.stem]
"""Records of boards with a power sensor."""

READINGS = 400

COSTLY = ("nano-jp4", "orin-nano-jp6", "agx-orin-jp6", "agx-thor-r39")
READ_S = 0.55e-3
RATE_HZ = 10
SECONDS = 20


class SlowTree(Tree):
    """A tree on virtual time, which passes only between two readings; its files take ``READ_S`` to read."""

    reads = 0
    passed_s = 0.0

    def now_s(self) -> float:
        """Seconds slept so far."""
        return self.passed_s

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.passed_s += seconds

    def read(self, path: str) -> str:
        """Read the file and spend ``READ_S`` of CPU time on it."""
        end_s = time.thread_time() + READ_S
        content = super().read(path)
        while time.thread_time() < end_s:
            pass
        self.reads += 1
        return content


def main() -> None:
    """Measure, and store the results."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keep(
            "boards",
            {
                "aim_s": 2e-4,
                "readings": READINGS,
                "boards": [reading(path, folder / path.stem) for path in SENSED],
                "pinning": pinning(folder / "pinned"),
                "agent": round_trips(folder / "asked"),
                "cost": {
                    "read_s": READ_S,
                    "rate_hz": RATE_HZ,
                    "boards": [cost(stem, folder / f"slow-{stem}") for stem in COSTLY],
                },
            },
        )


def opened(path: Path, root: Path) -> tuple[Tree, Controller]:
    """Write a board's files below ``root``; return them and their controller."""
    tree = Tree(str(unpack(path.stem, root)))
    return tree, Controller(find_board(tree, families(tree)[0]))


def reading(path: Path, root: Path) -> dict[str, Any]:
    """Time of a reading on one board's files, by the device that training uses."""
    tree, controller = opened(path, root)
    device = BoardDevice(controller, tree)
    counters = sorted({file.resolve() for file in root.glob("sys/**/energy_uj")})
    times_s = []
    for repeat in range(READINGS + 3):
        for counter in counters:
            counter.write_text(f"{int(counter.read_text()) + 50000}\n")
        if counters:
            time.sleep(0.005)  # a counter's power is its difference over a time
        taken_s = timed(device.power_w, time.thread_time)
        if repeat >= 3:
            times_s.append(taken_s)
    return {
        "board": path.stem,
        "device": spread(times_s),
        # Temperatures and counters, which a reading also checks once a second.
        "conditions": spread([timed(lambda: conditions(tree), time.thread_time) for _ in range(50)]),
    }


def pinning(root: Path) -> dict[str, Any]:
    """Time of taking control of the board, and restoring it."""
    first_s, back_s = [], []
    with live(root, throttled=False) as board:
        controller = Controller(find_board(Tree(str(root)), "jetson"))
        for _ in range(30):
            first_s.append(timed(lambda: controller.pin(612.0)))
            back_s.append(timed(controller.restore))
            time.sleep(0.1)
        assert board.is_as_found(), board.changes()
    return {"first": spread(first_s), "restore": spread(back_s)}


def round_trips(folder: Path) -> dict[str, Any]:
    """Time of a request to an agent that takes a reading."""
    folder.mkdir()
    read_s = []
    with live(folder / "board", throttled=False) as board, serving(board.root, folder / "socket"):
        with AgentClient(str(folder / "socket")) as client:
            client.pin(612.0)
            for _ in range(READINGS // 2):
                time.sleep(0.025)  # a reading is shared for 20 ms
                read_s.append(timed(client.read))
    return {"read": spread(read_s)}


def cost(stem: str, root: Path) -> dict[str, Any]:
    """Files read and time taken for each second of readings on one board."""
    tree = SlowTree(str(unpack(stem, root)))
    controller = Controller(find_board(tree, "jetson"))
    controller.read()
    per_second_s, longest_s, tree.reads = [], 0.0, 0
    for _ in range(SECONDS):
        taken_s = 0.0
        for _ in range(RATE_HZ):
            tree.sleep(1.0 / RATE_HZ)
            begin_s = time.thread_time()
            controller.read()
            reading_s = time.thread_time() - begin_s
            taken_s, longest_s = taken_s + reading_s, max(longest_s, reading_s)
        per_second_s.append(taken_s)
    return {
        "board": stem,
        "reads_per_s": tree.reads / SECONDS,
        "share": statistics.median(per_second_s),
        "longest_s": longest_s,
    }


def timed(call: Callable[[], object], now_s: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one call."""
    begin_s = now_s()
    call()
    return now_s() - begin_s


def spread(times_s: list[float]) -> dict[str, float]:
    """Median and worst, in seconds, and the number of repeats."""
    return {"median_s": statistics.median(times_s), "max_s": max(times_s), "repeats": len(times_s)}
