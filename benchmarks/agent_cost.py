"""The agent's own cost at ten readings a second, on boards whose files take as long to read as those of a real one.

One register of an INA3221 takes about 0.55 ms through sysfs (AGX Orin). Every file waits as long here, also those of
temperatures, which are faster on a board: an upper bound. The waits are CPU time, so that other load does not count.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.board_records import materialise

from benchmarks.timing import keep
from wattune_agent.controller import Controller
from wattune_agent.discovery import find_board
from wattune_agent.tree import Tree

BOARDS = Path(__file__).parent.parent / "tests" / "boards"
NAMES = ("nano-jp4", "orin-nano-jp6", "agx-orin-jp6", "agx-thor-r39")
READ_S = 0.55e-3
RATE_HZ = 10
SECONDS = 20


class SlowTree(Tree):
    """A tree whose files take ``READ_S`` to read."""

    reads = 0

    def read(self, path: str) -> str:
        """Read the file and spend ``READ_S`` of CPU time on it."""
        end_s = time.thread_time() + READ_S
        content = super().read(path)
        while time.thread_time() < end_s:
            pass
        self.reads += 1
        return content


class TimedTree(SlowTree):
    """The same on virtual time, which passes only between two readings."""

    passed_s = 0.0

    def now_s(self) -> float:
        """Seconds slept so far."""
        return self.passed_s

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.passed_s += seconds


def main() -> None:
    """Measure, and store the results."""
    with tempfile.TemporaryDirectory() as name:
        boards = [cost(stem, Path(name) / stem) for stem in NAMES]
    keep("agent_cost", {"read_s": READ_S, "rate_hz": RATE_HZ, "boards": boards})


def cost(stem: str, root: Path) -> dict[str, Any]:
    """Files read and time taken for each second of readings on one board."""
    record = json.loads((BOARDS / f"{stem}.json").read_text(encoding="utf-8"))
    tree = TimedTree(materialise(record, str(root)))
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
