"""The papers' flow around ``examples/program`` on live boards, by the Python and torch of `make test-old-torch`.

Profile under the cap, estimate, pick and train to the target; killed on the way, and with Baseline 1 beside it.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.live_board import COMMAND, ENVIRONMENT, ROOT, Board, live, wait_for

from benchmarks.timing import keep
from wattune.records import Plan, TrainingRecord

CAPS_W = {"nano": 4.2, "tx2-nx": 4.5}
KILLED_AFTER_S = (2, 4, 6, 8, 10, 12, 15, 18, 21, 25, 30, 35)
LOADS = """: > {0}; rm -f {0}_fraction; (
trap "" TERM; is_there() {{ sleep 0.02; kill -0 $$ 2>/dev/null; }}
until LC_ALL=C grep -qz . $WATTUNE_STEPS; do is_there || exit; done
echo $$ > {0}; echo 1 > {0}_fraction; while is_there; do :; done; rm {0}_fraction) &"""
"""Shell that loads the board fully from the program's first step to its end, however busy this machine is; the start at
a board's lowest clock would take minutes."""


def main(arguments: list[str]) -> None:
    """Measure both boards at a time, and store the results; ``arguments``: the program's Python."""
    with ThreadPoolExecutor() as pool:
        flows = pool.map(partial(_flow, arguments[0]), CAPS_W)
        keep("program_flow", {"python": arguments[0][-18:], **dict(zip(CAPS_W, flows, strict=True))})


def _flow(python: str, family: str) -> dict[str, Any]:
    with TemporaryDirectory() as name, live(Path(name) / "board", family, seconds=3600) as board:
        (Path(name) / "train.py").symlink_to(ROOT / "examples/program/train.py")  # a name of its own, to be looked for
        run, baseline = (Flow(board, CAPS_W[family], python, Path(name) / part) for part in ("run", "baseline"))
        restored = [run.is_restored_after(seconds) for seconds in KILLED_AFTER_S]
        kills = {"cap_w": CAPS_W[family], "killed": len(restored), "restored": sum(restored)}
        return {**kills, "wattune": run.figures(), "baseline_1": baseline.figures("8")}


class Flow:
    """One run on the board, killed and continued."""

    def __init__(self, board: Board, cap_w: float, python: str, output: Path):
        self._board, self._cap_w, self._python, self._output = board, cap_w, python, output
        self._train = f"{output.parent}/train.py --epochs 400"
        self._seen: list[tuple[float, float]] = []

    def is_restored_after(self, seconds: float) -> bool:
        """Kill the run after some seconds; return whether its program ends, and the user restores the board."""
        with self._watched(), subprocess.Popen(self._words(), cwd=self._output.parent, env=ENVIRONMENT) as process:
            time.sleep(seconds)
            process.kill()
        restore = [*COMMAND[:2], "wattune_agent", "restore", "--sysfs-root", str(self._board.root)]
        subprocess.run(restore, env=ENVIRONMENT, check=True, capture_output=True)
        is_over = wait_for(lambda: subprocess.run(["pgrep", "-f", self._train], capture_output=True).returncode, 20.0)
        return is_over and wait_for(self._board.is_as_found, 5.0)

    def figures(self, batch_sizes: str = "8,32,128") -> dict[str, Any]:
        """Run to the end; ``above_s``: seconds of all its parts with the mean over a second above the cap."""
        with self._watched():
            subprocess.run(self._words(batch_sizes), cwd=self._output.parent, env=ENVIRONMENT, check=True)
        assert wait_for(self._board.is_as_found, 5.0), self._board.changes()
        plan, record = Plan.load(self._output / "plan.json"), TrainingRecord.load(self._output / "training.json")
        chosen = plan.model_dump(include={"batch_size", "clock_mhz"})
        names = {"reached", "samples", "time_s", "energy_j", "power_window_w", "above_cap_s"}
        return {**chosen, **record.model_dump(include=names), **self._above()}

    def _words(self, batch_sizes: str = "8,32,128") -> list[str]:
        """The command of the run or of its continuation."""
        if (self._output / "run.json").exists():
            return [*COMMAND, "run", "--output", str(self._output), "--resume"]
        train = f"{self._python} {self._train} --batch-size {{batch_size}} --lr {{rate}} --seed {{seed}}"
        words = ["run", "--device", f"jetson?root={self._board.root}", "--cap", f"{self._cap_w}W"]
        words += ["--target", "0.9", "--metric", "val acc: ([0-9.]+)", "--batch-sizes", batch_sizes]
        words += ["--rate", "0.1@32,linear", "--output", str(self._output)]
        return [*COMMAND, *words, "--command", f"sh -c '{LOADS.format(self._board.root / 'load')} exec {train}'"]

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Read the board's sensor, whatever wattune reads."""
        sensor, over = next(self._board.root.rglob("in_power0_input")), threading.Event()

        def look() -> None:
            while not over.wait(0.1):
                self._seen.append((time.monotonic(), float(sensor.read_text()) / 1e3))

        with ThreadPoolExecutor() as pool:
            looking = pool.submit(look)
            try:
                yield
            finally:
                over.set()
            looking.result()  # raises what reading did: figures from half of the run would pass for the whole

    def _above(self) -> dict[str, float]:
        spans = [self._seen[at - 9 : at + 1] for at in range(9, len(self._seen))]
        means = [(sum(watts for _, watts in span) / 10, span[-1][0] - span[-2][0]) for span in spans]
        above_s = sum(seconds for mean_w, seconds in means if mean_w > self._cap_w)
        return {"above_s": above_s, "highest_w": max(mean_w for mean_w, _ in means)}
