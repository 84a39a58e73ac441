"""The papers' flow around ``examples/program`` on a live Nano, by the Python and torch of `make test-old-torch`.

Profile under the cap, estimate, pick and train to the target; killed on the way, and with Baseline 1 beside it.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.live_board import COMMAND, ENVIRONMENT, ROOT, Board, live, wait_for

from benchmarks.timing import keep
from wattune.records import Plan, TrainingRecord

KILLED_AFTER_S = (2, 5, 8, 12, 15, 20, 25, 30, 35, 40, 50, 60)
TRAIN = f"{ROOT}/examples/program/train.py --epochs 400"


def main(arguments: list[str]) -> None:
    """Measure, and store the results; ``arguments``: the program's Python."""
    with TemporaryDirectory() as name, live(Path(name) / "board", "nano", seconds=3600) as board:
        run, baseline = Path(name) / "run", Path(name) / "baseline"
        killed = [_is_restored_after(seconds, arguments[0], run, board) for seconds in KILLED_AFTER_S]
        own = _finished(_words(board, arguments[0], run), board, run)
        alone = _finished(_words(board, arguments[0], baseline, "8"), board, baseline)
    kills = {"killed": len(killed), "restored": sum(killed)}
    keep("program_flow", {"python": arguments[0][-18:], "cap_w": 3.6, **kills, "wattune": own, "baseline_1": alone})


def _words(board: Board, python: str, output: Path, batch_sizes: str = "8,32,128") -> list[str]:
    """The command of a run or of its continuation. The program loads the board from when it has imported torch."""
    if (output / "run.json").exists():
        return [*COMMAND, "run", "--output", str(output), "--resume"]
    load = board.root / "load"
    train = f"{python} {TRAIN} --batch-size {{batch_size}} --lr {{rate}} --seed {{seed}}"
    words = ["run", "--device", f"jetson?root={board.root}", "--cap", "3.6W", "--output", str(output)]
    words += ["--target", "0.9", "--metric", "val acc: ([0-9.]+)", "--batch-sizes", batch_sizes]
    words += ["--rate", "0.1@32,linear", "--command", f"sh -c ': > {load}; (sleep 5; echo $$ > {load}) & exec {train}'"]
    return [*COMMAND, *words]


def _is_restored_after(seconds: float, python: str, output: Path, board: Board) -> bool:
    """Kill the run after some seconds; return whether its program ends, and the board is restored as by its user."""
    with subprocess.Popen(_words(board, python, output), env=ENVIRONMENT, stderr=subprocess.DEVNULL) as process:
        time.sleep(seconds)
        process.kill()
    restore = [*COMMAND[:2], "wattune_agent", "restore", "--sysfs-root", str(board.root)]
    subprocess.run(restore, env=ENVIRONMENT, check=True, capture_output=True)
    is_over = wait_for(lambda: subprocess.run(["pgrep", "-f", TRAIN], capture_output=True).returncode, 20.0)
    return is_over and wait_for(board.is_as_found, 5.0)


def _finished(words: list[str], board: Board, output: Path) -> dict[str, Any]:
    subprocess.run(words, env=ENVIRONMENT, check=True)
    assert wait_for(board.is_as_found, 5.0), board.changes()
    plan, record = Plan.load(output / "plan.json"), TrainingRecord.load(output / "training.json")
    names = ("reached", "samples", "time_s", "energy_j", "power_window_w", "above_cap_s")
    return {**{name: getattr(record, name) for name in names}, "batch_size": plan.batch_size, "mhz": plan.clock_mhz}
