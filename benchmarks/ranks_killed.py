"""A rank of a job is killed at any moment: the boards are restored, and the other ranks end with a clear error.

The boards are folders with the files of real ones. Two ways: "session", in which each of three ranks holds a board in
its own session; and "script", a plain script under `wattune guard -- torchrun`, which holds one board for both ranks.
In each way rank 0 and another rank get SIGKILL at seeded moments. Timed are, from then on: until every file of every
board is as it was before the job, and until all other processes of the job have ended.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.agent_trees import texts
from tests.support.board_records import unpack
from tests.support.live_board import wait_for
from tests.support.ranks import Job, small
from tests.support.sessions import loss_of

from benchmarks.timing import ROOT, keep

MOMENTS = 12
VICTIMS = (0, 1)
LATEST_S = 3.0
"""Latest moment after the first steps of all ranks."""

WITHIN_S, BEGINS_WITHIN_S = 60.0, 300.0
BOARDS = ("orin-nano-jp6", "nano-jp4", "orin-nano-jp6")

SCRIPT = """
import os, torch
from benchmarks.ranks_killed import trains
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    model(torch.randn(256, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    trains(f"rank{os.environ['RANK']}")
"""


def trains(path: str | Path) -> None:
    """Leave this process's number in a file that others may read at any time."""
    path = Path(path)
    if not path.exists():
        new = path.with_suffix(".new")
        new.write_text(str(os.getpid()))
        new.replace(path)


def train(rank: int, folder: Path) -> None:
    """Train until the end of the process."""
    model, opened = small(rank, device=f"jetson?root={folder / f'board{rank}'}", cap_w=100.0, over="job")
    with opened as session:
        while True:
            for batch in session.batches():
                session.backward(loss_of(model, batch))
                trains(folder / f"rank{rank}")


class Sessions:
    """A job of three sessions. ``is_clear``: the others' errors name the lost rank."""

    boards = BOARDS
    ranks = len(BOARDS)

    def __init__(self, folder: Path):
        self._job = Job(train, self.ranks, folder)

    def has_ended(self) -> bool:
        """True if no process of the job is left."""
        return not any(process.is_alive() for process in self._job.processes)

    def is_clear(self, killed: int) -> bool:
        """True if each other rank's error names the killed one."""
        others = [end for rank, end in enumerate(self._job.ended(within_s=1.0)) if rank != killed]
        return all(end.kind == "RankLost" and f"rank {killed} (process" in str(end.error) for end in others)


class Script:
    """A script of two ranks that a guard holds the board for."""

    boards = BOARDS[:1]
    ranks = 2

    def __init__(self, folder: Path):
        (folder / "train.py").write_text(SCRIPT)
        guard = [
            sys.executable,
            "-m",
            "wattune",
            "guard",
            "--device",
            f"jetson?root={folder / 'board0'}",
            "--cap",
            "100W",
        ]
        job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
        options = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}}
        self._log = (folder / "log").open("w+")
        self._guard = subprocess.Popen(
            [*guard, "--fresh", "--", *job],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **options,
        )

    def has_ended(self) -> bool:
        """True once the guard has ended, after the job."""
        return self._guard.poll() is not None

    def is_clear(self, killed: int) -> bool:
        """True if torchrun names the killed rank, and the guard exits as torchrun did."""
        self._log.seek(0)
        said = self._log.read()
        return self._guard.returncode == 1 and "SIGKILL" in said and f"local_rank: {killed}" in said


WAYS: dict[str, Callable[[Path], Any]] = {"session": Sessions, "script": Script}


def measure(way: str, victim: int, moment: int) -> dict[str, object]:
    """Kill a rank once."""
    after_s = random.Random(f"{way}/{victim}/{moment}").uniform(0.0, LATEST_S)
    # A process that watched the killed one may still write there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder, kind = Path(name), WAYS[way]
        trees = [unpack(board, folder / f"board{rank}") for rank, board in enumerate(kind.boards)]
        before = [texts(tree) for tree in trees]
        job, pids = kind(folder), [folder / f"rank{rank}" for rank in range(kind.ranks)]
        trains_at_all = wait_for(
            lambda: all(path.exists() for path in pids) and all(map(changed, trees, before)), BEGINS_WITHIN_S
        )
        assert trains_at_all, "the job does not train"
        time.sleep(after_s)
        begun_s = time.monotonic()
        os.kill(int(pids[victim].read_text()), signal.SIGKILL)
        ends = {"restored_s": lambda: [texts(tree) for tree in trees] == before, "ended_s": job.has_ended}
        times_s: dict[str, float | None] = dict.fromkeys(ends)
        while None in times_s.values() and time.monotonic() - begun_s < WITHIN_S:
            for end, has_come in ends.items():
                if times_s[end] is None and has_come():
                    times_s[end] = time.monotonic() - begun_s
            time.sleep(0.01)
        run = {"way": way, "killed": victim, "after_s": after_s, **times_s, "clear": job.is_clear(victim)}
        print(run, flush=True)
        return run


def changed(tree: Path, before: object) -> bool:
    """True if a board is not as it was."""
    return texts(tree) != before


def main() -> None:
    """Kill each rank at each moment, in both ways, and store the results."""
    runs = [measure(way, victim, at) for way in WAYS for victim in VICTIMS for at in range(MOMENTS)]
    keep(
        "ranks_killed", {"summary": {way: summary([r for r in runs if r["way"] == way]) for way in WAYS}, "runs": runs}
    )


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts, and medians and maxima of the times, of the runs of one way."""
    figures: dict[str, Any] = {
        "moments": len(runs),
        "restored": sum(run["restored_s"] is not None for run in runs),
        "ended_clearly": sum(run["clear"] and run["ended_s"] is not None for run in runs),
    }
    for name in ("restored_s", "ended_s"):
        times_s = [run[name] for run in runs if run[name] is not None]
        figures |= {f"{name}_median": statistics.median(times_s), f"{name}_longest": max(times_s)}
    return figures
